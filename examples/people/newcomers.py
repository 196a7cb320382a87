"""People who were not there when the model was trained: their tables, the old graph, and the old model.

python examples/people/make_data.py people
python examples/people/train.py people
python examples/people/newcomers.py people
"""

import csv
import sys
from pathlib import Path

import weft


def main(folder: Path) -> None:
    run = weft.Run(folder / "python-run")
    graph = weft.ingest(
        folder / "edges.csv",
        features=folder / "vertices.csv",
        id_column="person",
        label_columns=["tariff"],
        split="random:0.6,0.2@0",
        undirected=True,
        name="people",
    )
    joined = weft.attach(
        graph,
        folder / "new-edges.csv",
        folder / "new-vertices.csv",
        id_column="person",
        label_columns=["tariff"],
        undirected=True,
    )
    print(f"{graph.num_nodes} people, and {joined.num_nodes - graph.num_nodes} new ones")

    new = run.predict(joined).pick(slice(graph.num_nodes, None))
    with (folder / "new-vertices.csv").open() as file:  # the truth, which the model has not seen
        truth = {row["person"]: row["tariff"] for row in csv.DictReader(file)}
    predicted = [new.class_names[number] for number in new.predictions]
    right = [truth[person] == name for person, name in zip(new.ids, predicted, strict=True)]
    print(f"accuracy on the new ones {sum(right) / len(right):.3f}")
    for person, name in list(zip(new.ids, predicted, strict=True))[:3]:
        print(f"{person}: {name}, truly {truth[person]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
