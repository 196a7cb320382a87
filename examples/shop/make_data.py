"""Writes what users of a shop bought and when: train.csv, then val.csv and test.csv, which come later in time.

python examples/shop/make_data.py shop

The same purchases, with their dates in one table, and tables of what is known of users and items: purchases.csv,
users.csv and items.csv, which graph.yaml describes.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np

DAYS, VAL, TEST = 365, 290, 330  # the last days are for validation, and then for testing
FIRST_DAY = date(2024, 1, 1)
DESCRIPTION = """\
name: typed-shop
types:
  user:
    file: users.csv
    id: user
  item:
    file: items.csv
    id: item
    log: price
    learned_columns: brand
relations:
  - name: bought
    source: user
    destination: item
    file: purchases.csv
    source_column: user
    destination_column: item
    time_column: date
    reverse: true
"""


def write_table(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with file.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(rows)


def write_tables(
    folder: Path, taste: np.ndarray, style: np.ndarray, purchases: list[tuple[int, int, int]], seed: int
) -> None:
    """What the shop knows of those who bought something, and of what was bought, and when that was.

    taste, style: of users and items, numbers each, of which their columns tell something.
    """
    rng = np.random.default_rng(seed + 1)
    users, items = ({row[end] for row in purchases} for end in (1, 2))
    regions, colours = np.array(["north", "east", "south", "west"]), np.array(["red", "green", "blue"])
    ages = np.clip(45 + 12 * taste[:, 0] + rng.normal(0, 4, len(taste)), 18, 90).astype(int)
    known = rng.random(len(taste)) > 0.1
    region = regions[(taste[:, 1:5] + rng.normal(0, 0.5, (len(taste), 4))).argmax(1)]
    joined = [FIRST_DAY - timedelta(days=int(day)) for day in rng.integers(1, 1500, len(taste))]
    people = ((f"user-{k}", ages[k] if known[k] else "", region[k], joined[k]) for k in sorted(users))
    write_table(folder / "users.csv", ("user", "age", "region", "joined"), people)
    makers = rng.normal(size=(60, style.shape[1]))
    brand = ((style[:, None] - makers) ** 2).sum(2).argmin(1)  # the maker whose things are most like it
    price = np.exp(3 + 0.8 * style[:, 0] + rng.normal(0, 0.2, len(style))).round(2)
    colour = colours[style[:, 1:4].argmax(1)]
    goods = ((f"item-{k}", f"brand-{brand[k]}", price[k], colour[k]) for k in sorted(items))
    write_table(folder / "items.csv", ("item", "brand", "price", "colour"), goods)
    dated = ((f"user-{user}", f"item-{item}", FIRST_DAY + timedelta(days=day)) for day, user, item in purchases)
    write_table(folder / "purchases.csv", ("user", "item", "date"), dated)
    (folder / "graph.yaml").write_text(DESCRIPTION)


def main(folder: Path, num_users: int = 800, num_items: int = 300, per_user: int = 20, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    taste, style = rng.normal(size=(num_users, 6)), rng.normal(size=(num_items, 6))
    popularity = rng.normal(0, 1, num_items)
    logits = popularity + taste @ style.T  # what a user wants: what all want, and what suits the user
    purchases = []
    for user in range(num_users):
        count = max(2, rng.poisson(per_user))
        keys = logits[user] + rng.gumbel(size=num_items)  # the largest are a draw without replacement
        days = rng.integers(0, DAYS, count)
        purchases += [(int(day), user, int(item)) for day, item in zip(days, np.argsort(-keys)[:count], strict=True)]
    purchases.sort()
    learned = [row for row in purchases if row[0] < VAL]
    users, items = {row[1] for row in learned}, {row[2] for row in learned}
    later = [row for row in purchases if row[0] >= VAL and row[1] in users and row[2] in items]
    files = {
        "train.csv": learned,
        "val.csv": [row for row in later if row[0] < TEST],
        "test.csv": [row for row in later if row[0] >= TEST],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        edges = ((f"user-{user}", f"item-{item}", "bought", day) for day, user, item in rows)
        write_table(folder / name, ("from", "to", "relation", "day"), edges)
    write_tables(folder, taste, style, learned + later, seed)
    print(f"{folder}: {len(users)} users, {len(items)} items; purchases:", {n: len(rows) for n, rows in files.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
