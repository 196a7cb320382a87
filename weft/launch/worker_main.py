"""What the launcher starts, once per worker, with the arguments VERB RUN [ARGUMENT]."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from weft.comm.process import handed_over, handed_through_pipe, tell_launcher
from weft.config import RunConfig, make_config
from weft.launch.handing import unpack
from weft.launch.trained import evaluate, export
from weft.launch.worker import CONFIG, compare_plans, train


def main(
    arguments: Sequence[str] | None = None, config: RunConfig | None = None, handed: bytes | None = None
) -> NoReturn:
    """Does a worker's part, and exits. Unless given, arguments are the process's, the rest comes from the launcher.

    `handed`: a model that the run was given as an object, packed.
    """
    verb, path, *rest = sys.argv[1:] if arguments is None else arguments
    run = Path(path)
    if config is None:
        config, handed = make_config(json.loads(handed_over(CONFIG))), handed_through_pipe()
    model = None if handed is None else unpack(handed)
    if verb == "train":
        watch = tell_launcher if "watched" in rest else None
        sys.exit(train(run, "resume" in rest, "quiet" in rest, config, model, watch))
    if verb == "evaluate":
        values, worker = evaluate(run, config, model)
        if worker == 0:
            Path(rest[0]).write_text(json.dumps(values))
    elif verb == "plan":
        megabits, latency = (float(text) if text else None for text in rest[1:3])
        compare_plans(run, Path(rest[0]), megabits, latency, config)
    elif verb == "export":
        out, what, weights, at = rest
        export(run, Path(out), config, what, Path(weights) if weights else None, model, float(at) if at else None)
    else:
        raise ValueError(f"unknown verb {verb}")
    sys.exit(0)
