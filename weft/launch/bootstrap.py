"""`python -m weft.launch.bootstrap MODULE ARGS`: how the launcher starts `python -m MODULE ARGS` as a worker.

Before the module runs, the process asks the kernel to end it when the launcher dies, however that happens.
"""

import runpy
import sys

from weft.launch.parent import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
