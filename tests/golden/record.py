"""`python -m tests.golden.record` puts what all cases come to on this kind of processor on record.

Only for a change that is meant to alter numbers; its commit says which and why.
"""

import json
import os
import tempfile
from pathlib import Path

from tests.golden.cases import CASES, RECORD, processor, recorded, result


def main() -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    kinds, mine = recorded(), dict[str, object]()
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            mine[str(case)] = result(case, Path(folder))
        print(f"{case}: {mine[str(case)]}", flush=True)
    RECORD.write_text(json.dumps({**kinds, processor(): mine}, indent=1) + "\n")
    print(f"{len(mine)} cases on record for {processor()}")


if __name__ == "__main__":
    main()
