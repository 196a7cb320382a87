"""The tables of docs/types.md: users, items and tags of a shop that does not exist, made from a seed.

    python examples/types/make_data.py shop
    weft ingest shop/graph.yaml -o shop/graph
    weft train --data shop/graph --model hgt --run shop/run
    weft predict shop/run --attach shop/new.yaml --what predictions --out shop/new.csv

Users of a segment buy items of a price class more often than others, and nothing else tells their segment. new.yaml
describes the tables of users who come later.
"""

import csv
import random
import sys
from pathlib import Path

SEGMENTS = ("bronze", "gold", "silver")
DESCRIPTION = """\
name: shop
types:
  user:
    file: users.csv
    id: user_id
    label: segment
    split: random:0.6,0.2@0
  item:
    file: items.csv
    id: sku
    log: price
  tag:            # no table: its vertices are the ids that edges name, and their rows are learned
relations:
  - name: buys
    source: user
    destination: item
    file: purchases.csv
    source_column: buyer
    destination_column: sku
    weight_column: amount
    reverse: true
  - name: has
    source: item
    destination: tag
    file: tags.csv
    source_column: sku
    destination_column: tag
    reverse: true
"""
NEW_DESCRIPTION = """\
types:
  user:
    file: new-users.csv
    id: user_id
  item:           # no table: no new ones
relations:
  - name: buys
    source: user
    destination: item
    file: new-purchases.csv
    source_column: buyer
    destination_column: sku
    weight_column: amount
"""


def write_table(file: Path, columns: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(rows)


def write_shop(folder: Path, users: int = 300, items: int = 120, purchases: int = 2500, seed: int = 0) -> Path:
    """Four tables and the file that describes them, whose path it returns."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    segments = [draw.randrange(3) for _ in range(users)]
    people: list[list[object]] = []
    for user, segment in enumerate(segments):
        age = draw.randint(18, 80) if draw.random() > 0.1 else ""
        people.append([user, age, draw.choice(["Rome", "Oslo", "Lima"]), SEGMENTS[segment]])
    goods: list[list[object]] = []
    for item in range(items):
        price = round(3 ** (1 + item % 3) * (1 + draw.random()), 2)
        goods.append([item, price, round(draw.random(), 3), draw.choice(["red", "blue"]), item % 2 == 0])

    def purchase(user: int) -> list[object]:
        price_class = segments[user] if draw.random() < 0.5 else draw.randrange(3)
        return [user, draw.randrange(items // 3) * 3 + price_class, draw.randint(1, 4)]

    bought = [purchase(draw.randrange(users)) for _ in range(purchases)]
    tags = [[item, tag] for item in range(items) for tag in draw.sample(["books", "food", "garden", "home", "toys"], 2)]
    write_table(folder / "users.csv", ["user_id", "age", "city", "segment"], people)
    write_table(folder / "items.csv", ["sku", "price", "weight", "colour", "new"], goods)
    write_table(folder / "purchases.csv", ["buyer", "sku", "amount"], bought)
    write_table(folder / "tags.csv", ["sku", "tag"], tags)
    (folder / "graph.yaml").write_text(DESCRIPTION)
    newcomers = range(users, users + users // 10)
    segments += [draw.randrange(3) for _ in newcomers]
    people = [
        [user, draw.randint(18, 80), draw.choice(["Rome", "Oslo"]), SEGMENTS[segments[user]]] for user in newcomers
    ]
    write_table(folder / "new-users.csv", ["user_id", "age", "city", "segment"], people)
    each = max(1, purchases // users)
    bought = [purchase(user) for user in newcomers for _ in range(each)]
    write_table(folder / "new-purchases.csv", ["buyer", "sku", "amount"], bought)
    (folder / "new.yaml").write_text(NEW_DESCRIPTION)
    return folder / "graph.yaml"


if __name__ == "__main__":
    print(write_shop(Path(sys.argv[1] if len(sys.argv) > 1 else "shop")))
