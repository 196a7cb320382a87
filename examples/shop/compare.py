"""Recommendations of a run beside the most popular items: the mean reciprocal rank of what users bought later.

python examples/shop/compare.py shop

Of every purchase in test.csv the item is ranked among all items that the user had not bought before.
"""

import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

import weft


def read(path: Path) -> list[tuple[str, str]]:
    with path.open() as file:
        return [(row["from"], row["to"]) for row in csv.DictReader(file)]


def mrr(scores: np.ndarray, users: dict[str, int], items: dict[str, int], folder: Path) -> float:
    """scores [users, items]; equal scores share the mean of their ranks."""
    had = defaultdict(set)
    for user, item in read(folder / "train.csv") + read(folder / "val.csv"):
        had[user].add(items[item])
    found = []
    for user, item in read(folder / "test.csv"):
        row, mine = scores[users[user]], items[item]
        others = np.array([other for other in range(len(items)) if other not in had[user] and other != mine])
        found.append(1 / (1 + (row[others] > row[mine]).sum() + 0.5 * (row[others] == row[mine]).sum()))
    return float(np.mean(found))


def main(folder: Path) -> None:
    outputs = weft.Run(folder / "run").outputs()  # the vertices' rows, whose products are scores
    row_of = {name: number for number, name in enumerate(outputs.ids)}
    bought = read(folder / "train.csv")
    users = {name: number for number, name in enumerate(dict.fromkeys(user for user, _ in bought))}
    items = {name: number for number, name in enumerate(dict.fromkeys(item for _, item in bought))}
    rows = outputs.values[[row_of[name] for name in users]], outputs.values[[row_of[name] for name in items]]
    learned = rows[0] @ rows[1].T

    counts = Counter(item for _, item in bought)
    popular = np.tile([float(counts[item]) for item in items], (len(users), 1))
    chance = np.random.default_rng(0).random(learned.shape)
    for name, scores in (("at random", chance), ("most popular", popular), ("weft", learned)):
        print(f"{name}: MRR {mrr(scores, users, items, folder):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
