"""From two csv files to predictions, in Python.

python examples/people/make_data.py people
python examples/people/train.py people
"""

import sys
from pathlib import Path

import weft


def main(folder: Path) -> None:
    graph = weft.ingest(
        folder / "edges.csv",
        features=folder / "vertices.csv",
        id_column="person",
        label_columns=["tariff"],
        split="random:0.6,0.2@0",
        undirected=True,
        name="people",
    )
    print(graph)

    run = weft.train(graph, model="sage", run=folder / "python-run", train={"epochs": 60}, quiet=True)
    print(f"test accuracy {run.summary['test_accuracy']:.3f}")

    outputs = run.outputs()
    for person, number in list(zip(outputs.ids, outputs.predictions, strict=True))[:3]:
        print(f"{person}: {outputs.class_names[number]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
