"""Small files that appear whole or, as before, not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replaces a file by its new content in one step, also where a power failure comes between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
