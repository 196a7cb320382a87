"""Which run folders may name code to be imported: those of runs that this user made, or that are given --trust.

A run whose model is a user's own names a module and a function. When this user trains it, a random token goes into the
run folder, and a record into a folder of the user's own ($XDG_STATE_HOME/weft/runs), under the run folder's path: the
token, the model's name, and the file that the module came from. The verbs that import the model compare the run folder
with that record. A folder that came out of an archive, was copied, or was altered to name another function has no
record that fits, whoever owns its files; it needs --trust.
"""

import hashlib
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.disk.atomic import write_atomically
from weft.errors import UserError
from weft.layers import GIVEN
from weft_function.own import file_of

TOKEN = ".token"
OWNER_ONLY = 0o600


def names_code(model: str) -> bool:
    """Whether a model is a user's own, module:function; one that was given as an object names no code to import."""
    return ":" in model and not model.startswith(f"{GIVEN}:")


def record(run: Path, model: str) -> None:
    """Notes that this user makes the run. Where nothing can be noted, the run needs --trust later."""
    if not names_code(model):
        return
    token = secrets.token_hex(16)
    with suppress(OSError):
        file = _record_file(run)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(run / TOKEN, token, OWNER_ONLY)
        write_atomically(file, json.dumps({"run": os.path.realpath(run), "token": token, **_code(model)}), OWNER_ONLY)


def check(run: Path, model: str, trust: bool) -> None:
    """Refuses to import what a run folder names, unless this user made the run or says that it may be trusted."""
    if trust or not names_code(model):
        return
    why = _doubt(run, model)
    if why is not None:
        module, _, function = model.partition(":")
        where = file_of(module) or "no file that is found here"
        raise UserError(
            f"{run} names code to run, function {function} of module {module} ({where}), and {why}: look at it, and "
            "add --trust to run it"
        )


def _doubt(run: Path, model: str) -> str | None:
    """Why the code may not be this user's own; None: it is."""
    owner = os.geteuid()
    with suppress(OSError):
        if any(path.stat().st_uid != owner for path in (run, run / "config.yaml", run / TOKEN)):
            return "another user owns that folder"
    try:
        noted = json.loads(_record_file(run).read_text())
        token = (run / TOKEN).read_text()
    except (OSError, ValueError):
        return "this user has not made that run here"
    if not isinstance(noted, dict) or not secrets.compare_digest(str(noted.get("token")), token):
        return "this user has not made that run here"
    now = _code(model)
    if noted.get("model") != now["model"]:
        return "it named other code when this user made it"
    if noted.get("file") != now["file"]:
        return f"that module came from {noted.get('file')} when this user made the run"
    return None


def _code(model: str) -> dict[str, Any]:
    return {"model": model, "file": file_of(model.partition(":")[0])}


def _record_file(run: Path) -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "weft" / "runs" / f"{hashlib.sha256(os.path.realpath(run).encode()).hexdigest()}.json"
