"""Where `python -m weft` imports from: not from the current folder, whose files may have the names of any module.

Python puts the current folder first on the path for `-m`, and imports some modules of its own before any of weft's:
`python -P -m weft` and the command `weft` do not search it at all.
"""

import os
import sys

OWN = ("weft", "weft_function")


def _leave_current_folder() -> str | None:
    """Takes it off the path where this process was started as `python -m weft`; what it took off, if anything."""
    arguments = sys.orig_argv
    at = arguments.index("-m") + 1 if "-m" in arguments else len(arguments)
    if sys.flags.safe_path or at >= len(arguments) or arguments[at].partition(".")[0] not in OWN:
        return None
    current = os.path.realpath(os.getcwd())
    if not sys.path or os.path.realpath(sys.path[0] or current) != current:
        return None
    del sys.path[0]
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if here == current and here not in map(os.path.realpath, sys.path):
        sys.path.append(here)  # weft itself lies here and is not installed
    return current


LEFT = _leave_current_folder()
