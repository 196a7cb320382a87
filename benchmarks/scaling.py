"""Memory, bytes and time of full-graph training as the graph is cut into more parts.

    python -m benchmarks.scaling [--quick] [--json FILE]

SAGE, 3 layers of 256, on `synthetic:arxiv` (`--quick`: a tenth of it), with 1, 2, 4 and 8 workers of one thread on this
machine. Bytes are counted by the communicator and must equal the formula exactly: halo rows x columns that travel, both
ways, and the gradients once per worker. With more workers than cores the time says what the split costs, not what it
gains.
"""

import tempfile
from pathlib import Path

from benchmarks.harness import Bench, parse
from weft.config import make_config
from weft.layers import ModelConfig, build_model
from weft.partitioning import read_partition
from weft.run import start

PARTS = (1, 2, 4, 8)
HIDDEN, LAYERS, FLOAT_BYTES = 256, 3, 4


def formula(halo_rows: int, workers: int, num_features: int, num_classes: int) -> dict[str, int]:
    """Bytes of an epoch by class: layer 1 aggregates constant input once, layer 2 sends 256, layer 3 the classes."""
    columns = (LAYERS - 2) * HIDDEN + min(HIDDEN, num_classes)
    model = build_model(ModelConfig(name="sage", layers=LAYERS, hidden=HIDDEN), num_features, num_classes)
    weights = sum(parameter.numel() for parameter in model.parameters())
    rows = halo_rows * columns * FLOAT_BYTES
    gradients = weights * FLOAT_BYTES * workers if workers > 1 else 0
    return {"hidden_forward": rows, "hidden_backward": rows, "gradients": gradients}


def main() -> int:
    bench = Bench("scaling", parse(__doc__))
    data = "synthetic:arxiv?nodes=16934" if bench.options.quick else "synthetic:arxiv"
    print("workers  epoch      peak memory per worker   halo rows   on the wire per epoch   formula")
    for workers in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "data": data,
                "workers": workers,
                "threads": 1,
                "run": str(Path(folder) / "run"),
                "model": {"name": "sage", "layers": LAYERS, "hidden": HIDDEN},
                "train": {"epochs": 6, "eval_every": 6, "checkpoint_every": 0},
            }
            run = start(make_config(settings), quiet=True)
            summary = run.summary
            halo = read_partition(run.path / "parts").quality.halo if workers > 1 else 0
            last = run.metrics[-1]["wire_bytes"]
        wanted = formula(halo, workers, summary["graph"]["num_features"], summary["graph"]["num_classes"])
        counted = {kind: last[kind] for kind in wanted}
        peak, seconds = max(summary["peak_rss_bytes"]), summary["epoch_seconds"]["median"]
        total = sum(last.values())
        print(
            f"{workers:7d}  {seconds:6.3f} s  {peak / 2**20:10.0f} MiB  {halo:20,d}  {total / 2**20:13.1f} MiB"
            f"  {sum(wanted.values()) / 2**20:13.1f} MiB",
            flush=True,
        )
        bench.rows.append(
            {"case": f"{workers} workers", "seconds": seconds, "peak_rss_bytes": summary["peak_rss_bytes"],
             "halo_rows": halo, "wire_bytes": last, "formula": wanted}
        )  # fmt: skip
        bench.bar(f"{workers} workers: counted bytes equal the formula", float(counted == wanted), 1.0, unit="")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
