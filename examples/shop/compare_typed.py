"""What a run of the graph with types and dates recommends, beside the most popular items: the mean reciprocal rank.

python examples/shop/compare_typed.py shop

Of every purchase of the newest tenth the item is ranked among all items that the user had not bought before that day,
by what was known on the morning of the day: by the model, by how often items had been bought, and by chance.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import weft


def ranks(scores: np.ndarray, mine: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Of item mine[k] in row k of scores among the candidates, bool like scores; equal ones share their mean rank."""
    own = scores[np.arange(len(mine)), mine][:, None]
    others = candidates & (np.arange(scores.shape[1]) != mine[:, None])
    return 1 + ((scores > own) & others).sum(1) + 0.5 * ((scores == own) & others).sum(1)


def main(folder: Path) -> None:
    run = weft.Run(folder / "typed-run")
    with (folder / "purchases.csv").open() as file:
        bought = [(row["date"], row["user"], row["item"]) for row in csv.DictReader(file)]
    dates = np.array([date for date, _, _ in bought])  # ascending, as the table is
    tested = dates > dates[round(0.9 * len(dates)) - 1]  # as link.test=0.1 holds out: days stay together
    found = defaultdict(list)
    random = np.random.default_rng(0)
    for date in np.unique(dates[tested]):
        then = run.outputs(at=date)  # the rows that the model gives all vertices, whose products are scores
        rows = {kind: then.values[then.types == kind] for kind in ("user", "item")}
        number = {kind: {id: k for k, id in enumerate(then.ids[then.types == kind])} for kind in rows}
        ends = np.array([(number["user"][user], number["item"][item]) for _, user, item in bought])
        had = np.zeros((len(rows["user"]), len(rows["item"])), bool)
        had[tuple(ends[dates < date].T)] = True
        users, items = ends[dates == date].T
        popular = np.tile(had.sum(0), (len(users), 1))
        chance = random.random(popular.shape)
        learned = rows["user"][users] @ rows["item"].T
        for name, scores in (("at random", chance), ("most popular", popular), ("weft", learned)):
            found[name].append(1 / ranks(scores, items, ~had[users]))
    for name, reciprocals in found.items():
        print(f"{name}: MRR {np.concatenate(reciprocals).mean():.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
