"""How well the model of transactions does beside a logistic regression on the same tables, which sees no graph.

python examples/fraud/compare.py fraud
"""

import csv
import sys
from pathlib import Path

import numpy as np
import torch

import weft


def roc_auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """How often a fraudulent transaction has a higher score than an honest one."""
    ranks = np.argsort(np.argsort(scores)) + 1.0
    bad = truth.sum()
    return float((ranks[truth].sum() - bad * (bad + 1) / 2) / (bad * (len(truth) - bad)))


def logistic(x: torch.Tensor, y: torch.Tensor, train: torch.Tensor) -> np.ndarray:
    """Scores of a logistic regression that is fitted to the training rows."""
    x = (x - x[train].mean(0)) / x[train].std(0).clamp(min=1e-6)
    model = torch.nn.Linear(x.shape[1], 1)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        error = torch.nn.functional.binary_cross_entropy_with_logits(model(x[train])[:, 0], y[train])
        (error + 1e-4 * model.weight.square().sum()).backward()
        return error

    optimiser.step(loss)
    return model(x)[:, 0].detach().numpy()


def main(folder: Path) -> None:
    run, graph = weft.Run(folder / "edges-run"), weft.load(folder / "graph")
    outputs = run.outputs()
    fraud = np.array([name == "yes" for name in outputs.class_names]).argmax()
    truth, test, train = outputs.targets == fraud, outputs.splits == "test", outputs.splits == "train"

    with (folder / "transactions.csv").open() as file:
        rows = list(csv.DictReader(file))
    number = {account: row for row, account in enumerate(graph.original_ids)}
    ends = [graph.x[[number[row[end]] for row in rows]] for end in ("from", "to")]
    own = torch.tensor([[np.log(float(row["amount"])), float(row["hour"])] for row in rows], dtype=torch.float32)
    plain = logistic(torch.cat([own, *ends], 1), torch.from_numpy(truth).float(), torch.from_numpy(train))

    for name, scores in (("logistic regression", plain), ("with the graph", outputs.probabilities[:, fraud])):
        worst = np.argsort(-scores[test])[: truth[test].sum()]
        print(f"{name}: ROC AUC {roc_auc(scores[test], truth[test]):.3f}, ", end="")
        print(f"of the {len(worst)} most suspicious {truth[test][worst].mean():.0%} are fraudulent")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
