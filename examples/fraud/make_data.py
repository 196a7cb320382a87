"""Writes accounts.csv and transactions.csv: payments between accounts, of which some are fraudulent.

python examples/fraud/make_data.py fraud
"""

import csv
import sys
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import numpy as np

COUNTRIES = ("DE", "DK", "FR", "IT", "PT")


def write(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def main(folder: Path, num_accounts: int = 1500, num_payments: int = 9000, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    # Rings: accounts that pass stolen money on among each other. Nothing in their own row gives them away for sure.
    ring = np.where(rng.random(num_accounts) < 0.12, rng.integers(0, 12, num_accounts), -1)
    opened = np.where(ring >= 0, rng.integers(1500, 3000, num_accounts), rng.integers(0, 3000, num_accounts))
    balance = np.exp(rng.normal(7.5, 1.0, num_accounts) - 0.5 * (ring >= 0)).round(2)
    business = rng.random(num_accounts) < 0.25

    payer = rng.integers(0, num_accounts, num_payments)
    payee = rng.integers(0, num_accounts, num_payments)
    within = (ring[payer] >= 0) & (rng.random(num_payments) < 0.6)
    for one in range(12):
        rows = np.flatnonzero(within & (ring[payer] == one))
        payee[rows] = rng.choice(np.flatnonzero(ring == one), rows.size)
    both, either = (ring[payer] >= 0) & (ring[payee] >= 0), (ring[payer] >= 0) | (ring[payee] >= 0)
    fraud = rng.random(num_payments) < np.where(both, 0.6, np.where(either, 0.08, 0.004))
    amount = np.exp(rng.normal(4.0, 1.0, num_payments) + 0.6 * fraud).round(2)
    hour = np.where(fraud & (rng.random(num_payments) < 0.3), rng.integers(0, 6, num_payments), 0)
    hour = np.where(hour == 0, rng.integers(0, 24, num_payments), hour)

    # What an account will spend next month: out of its balance, and the more, the more it was paid.
    paid = np.bincount(payee, amount, num_accounts)
    spending = (0.2 * balance + 0.8 * paid) * np.exp(rng.normal(0, 0.2, num_accounts))

    def account(number: int) -> str:
        return f"acc-{number:04d}"

    def row(number: int) -> tuple[object, ...]:
        day = date(2016, 1, 1) + timedelta(days=int(opened[number]))
        known = "" if rng.random() < 0.1 else balance[number]
        kind = "business" if business[number] else "private"
        return account(number), day, COUNTRIES[number % 5], kind, known, round(float(np.log(spending[number])), 4)

    columns = zip(payer, payee, amount, hour, fraud, strict=True)
    payments = ((account(u), account(v), sum_, at, "yes" if bad else "no") for u, v, sum_, at, bad in columns)
    folder.mkdir(parents=True, exist_ok=True)
    write(
        folder / "accounts.csv",
        ("account", "opened", "country", "kind", "balance", "log_spending"),
        map(row, range(num_accounts)),
    )
    write(folder / "transactions.csv", ("from", "to", "amount", "hour", "fraud"), payments)
    print(f"{folder}: {num_accounts} accounts, {num_payments} transactions, {fraud.mean():.1%} of them fraudulent")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
