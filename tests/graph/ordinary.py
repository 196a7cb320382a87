"""An ordinary table of people and who knows whom: ages, incomes with a long tail, cities, dates, and missing values.

Labels depend on the columns, and people mostly know people with their label.
"""

import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from weft.graph.files import Array

CITIES = np.array(["Aarhus", "Bergen", "Cork", "Dijon", "Essen", "Faro", "Genoa", "Hull"])
TARIFFS = np.array(["basic", "family", "night", "pro", "student"])
FIRST_DAY = np.datetime64("2015-01-01")


@dataclass(frozen=True)
class Ordinary:
    """Columns [N] as people would have them; NaN, NaT and "" where a value is missing."""

    ids: Array
    age: Array
    income: Array
    city: Array
    joined: Array
    owner: Array  # bool
    tariff: Array  # the label
    src: Array  # ids
    dst: Array

    def write(self, folder: Path) -> tuple[Path, Path]:
        """edges.csv and nodes.csv."""
        edges = pa.table({"src": self.src, "dst": self.dst})
        pyarrow.csv.write_csv(edges, folder / "edges.csv")
        pyarrow.csv.write_csv(self.table(), folder / "nodes.csv")
        return folder / "edges.csv", folder / "nodes.csv"

    def table(self) -> pa.Table:
        dates = [None if np.isnat(day) else day.astype(datetime.date) for day in self.joined]
        return pa.table(
            {
                "person": self.ids,
                "age": pa.array(self.age, from_pandas=True),
                "income": pa.array(self.income, from_pandas=True),
                "city": pa.array([name or None for name in self.city.tolist()]),
                "joined": pa.array(dates, pa.date32()),
                "owner": self.owner,
                "tariff": self.tariff,
            }
        )


def ordinary(num_people: int = 3000, seed: int = 0, neighbours: int = 4, homophily: float = 0.6) -> Ordinary:
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(42, 14, num_people), 18, 90).round()
    income = np.exp(rng.normal(10.3, 0.9, num_people)).round(2)
    city = rng.integers(0, CITIES.size, num_people)
    days = rng.integers(0, 3000, num_people)
    owner = rng.random(num_people) < 0.3
    signs = np.stack([(age - 42) / 14, (np.log(income) - 10.3) / 0.9, (days - 1500) / 866, owner - 0.3], 1)
    scores = signs @ rng.normal(0, 1, (4, TARIFFS.size)) + rng.normal(0, 1.2, (CITIES.size, TARIFFS.size))[city]
    label = (scores + rng.gumbel(0, 0.6, scores.shape)).argmax(1)
    joined = FIRST_DAY + days.astype("timedelta64[D]")
    age[rng.random(num_people) < 0.08] = np.nan
    income[rng.random(num_people) < 0.12] = np.nan
    joined[rng.random(num_people) < 0.05] = np.datetime64("NaT")
    names = np.where(rng.random(num_people) < 0.1, "", CITIES[city])
    src = np.repeat(np.arange(num_people), neighbours)
    dst = rng.integers(0, num_people, src.size)
    alike = rng.random(src.size) < homophily
    for one in range(TARIFFS.size):
        rows = np.flatnonzero(alike & (label[src] == one))
        dst[rows] = rng.choice(np.flatnonzero(label == one), rows.size)
    ids = np.array([f"p{number:05d}" for number in rng.permutation(num_people)])
    return Ordinary(ids, age, income, names, joined, owner, TARIFFS[label], ids[src], ids[dst])


def by_hand(people: Ordinary, training: Array) -> Array:
    """The features that a careful person makes of the columns: z-scores, one-hot, imputed means with an indicator."""
    columns = []
    days = (people.joined - FIRST_DAY).astype(np.float64)
    days[np.isnat(people.joined)] = np.nan
    for values in (people.age, people.income, days):
        mean, spread = np.nanmean(values[training]), np.nanstd(values[training])
        missing = np.isnan(values)
        columns += [np.where(missing, 0, (values - mean) / spread), missing.astype(np.float64)]
    city = [(people.city == name).astype(np.float64) for name in CITIES] + [(people.city == "").astype(np.float64)]
    columns = [*columns[:4], *city, *columns[4:], people.owner.astype(np.float64)]
    return np.stack(columns, 1).astype(np.float32)
