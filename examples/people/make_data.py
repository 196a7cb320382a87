"""Writes two tables: people (vertices.csv) and who calls whom (edges.csv); and the same of some who join later.

python examples/people/make_data.py people
"""

import csv
import sys
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import numpy as np

CITIES = ("Aarhus", "Bergen", "Cork", "Dijon", "Essen", "Faro")
TARIFFS = ("basic", "family", "night", "student")
COLUMNS = ("person", "age", "income", "city", "joined", "owner", "tariff")


def write(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def main(folder: Path, num_people: int = 2000, num_new: int = 100, seed: int = 0) -> None:
    rng, count = np.random.default_rng(seed), num_people + num_new
    age = np.clip(rng.normal(42, 15, count), 18, 90).round()
    income = np.exp(rng.normal(10.3, 0.8, count)).round(2)
    city = rng.integers(0, len(CITIES), count)
    day = rng.integers(0, 3000, count)
    owner = rng.random(count) < 0.3

    # What decides about the tariff: the columns, a taste of each city, and what no column says.
    signs = np.stack([(age - 42) / 15, (np.log(income) - 10.3) / 0.8, (day - 1500) / 866, owner - 0.3], 1)
    scores = signs @ rng.normal(0, 1, (4, len(TARIFFS))) + rng.normal(0, 1, (len(CITIES), len(TARIFFS)))[city]
    tariff = (scores + rng.gumbel(0, 0.8, scores.shape)).argmax(1)

    def person(number: int) -> str:
        return f"p{number:05d}"

    def calls(callers: range, known: int) -> Iterable[tuple[str, str]]:
        """Four calls of each, two to people of the caller's tariff, all to the first people, who are known."""
        alike = [np.flatnonzero(tariff[:known] == one) for one in range(len(TARIFFS))]
        for caller in callers:
            for called in (*rng.choice(alike[tariff[caller]], 2), *rng.integers(0, known, 2)):
                yield person(caller), person(called)

    def row(number: int) -> tuple[object, ...]:
        joined = date(2016, 1, 1) + timedelta(days=int(day[number]))
        columns = [int(age[number]), float(income[number]), CITIES[city[number]], joined]
        gaps = rng.random(4) < (0.08, 0.12, 0.10, 0.05)  # values that nobody knows
        shown = ["" if gap else value for gap, value in zip(gaps, columns, strict=True)]
        return person(number), *shown, "yes" if owner[number] else "no", TARIFFS[tariff[number]]

    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "vertices.csv", COLUMNS, map(row, range(num_people)))
    write(folder / "edges.csv", ("from", "to"), calls(range(num_people), num_people))
    write(folder / "new-vertices.csv", COLUMNS, map(row, range(num_people, count)))
    write(folder / "new-edges.csv", ("from", "to"), calls(range(num_people, count), num_people))
    print(f"{folder}: {num_people} people in vertices.csv, {num_new} in new-vertices.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
