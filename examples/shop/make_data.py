"""Writes what users of a shop bought and when: train.csv, then val.csv and test.csv, which come later in time.

python examples/shop/make_data.py shop
"""

import csv
import sys
from pathlib import Path

import numpy as np

DAYS, VAL, TEST = 365, 290, 330  # the last days are for validation, and then for testing


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
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("from", "to", "relation", "day"))
            writer.writerows((f"user-{user}", f"item-{item}", "bought", day) for day, user, item in rows)
    print(f"{folder}: {len(users)} users, {len(items)} items; purchases:", {n: len(rows) for n, rows in files.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
