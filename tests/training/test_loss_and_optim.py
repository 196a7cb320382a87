"""The loss over all rows, learning rates, optimisers, and which weights decay."""

import copy

import pytest
import torch
from torch.nn import functional

from tests.workers import run_workers
from weft.comm import Communicator
from weft.layers import ModelConfig, build_model
from weft.training.loss import GlobalLoss
from weft.training.optim import OptimConfig, build_optimiser, learning_rate

ALONE = Communicator.alone()


def loss_part(comm, y, rows, num_classes, weights, logits):
    mine = rows[comm.worker :: comm.num_workers]  # unequal shares
    return GlobalLoss(y, mine, num_classes, weights, comm)(logits)


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_shares_add_up_to_the_loss_of_all_rows(weights):
    torch.manual_seed(0)
    y, logits, rows = torch.randint(0, 3, (11,)), torch.randn(11, 3), torch.tensor([0, 2, 3, 5, 7, 8, 10])
    shares = run_workers(loss_part, 3, y, rows, 3, weights, logits)
    count = torch.bincount(y[rows], minlength=3)
    class_weights = None if weights == "none" else rows.numel() / ((count > 0).sum() * count.clamp(min=1))
    wanted = functional.cross_entropy(logits[rows], y[rows], weight=class_weights, reduction="sum") / rows.numel()
    torch.testing.assert_close(sum(shares), wanted)


@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_loss_and_gradient_are_torchs(weights, dtype):
    draw = torch.Generator().manual_seed(1)
    rows = torch.randperm(40, generator=draw)[:23].sort().values
    y, values = torch.randint(0, 5, (40,), generator=draw), 9 * torch.randn(40, 5, generator=draw).to(dtype)
    loss = GlobalLoss(y, rows, 5, weights, ALONE)
    wide = values.float() if dtype == torch.bfloat16 else values
    class_weights = None if loss.weights is None else loss.weights.to(wide.dtype)
    ours, parts, torchs = (values.clone().requires_grad_() for _ in range(3))
    wanted = (
        functional.cross_entropy(torchs[rows].to(wide.dtype), y[rows], weight=class_weights, reduction="sum")
        / rows.numel()
    )
    for found in (loss(ours), loss.share(parts[rows], y[rows], loss.divisor)):
        torch.testing.assert_close(found, wanted)
        (3 * found).backward()
    (3 * wanted).backward()
    torch.testing.assert_close(ours.grad, torchs.grad)
    torch.testing.assert_close(parts.grad, torchs.grad)


def test_a_worker_without_training_rows_has_no_loss():
    logits = torch.randn(4, 3, requires_grad=True)
    loss = GlobalLoss(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 3, "none", ALONE)(logits)
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()


def test_unknown_labels_of_several_do_not_count():
    y = torch.tensor([[1, 0], [-1, 1], [0, -1]], dtype=torch.int8)
    logits = torch.randn(3, 2)
    loss = GlobalLoss(y, torch.arange(3), 2, "none", ALONE)(logits)
    known = y >= 0
    wanted = functional.binary_cross_entropy_with_logits(logits[known], y[known].float())
    torch.testing.assert_close(loss, wanted)


def test_learning_rates():
    def rates(epochs, **settings):
        return [learning_rate(OptimConfig(lr=1.0, **settings), epoch, epochs) for epoch in range(1, epochs + 1)]

    assert rates(3) == [1, 1, 1]
    assert rates(4, warmup_epochs=2) == [0.5, 1, 1, 1]
    assert rates(4, schedule="step", step_epochs=2, gamma=0.1) == pytest.approx([1, 1, 0.1, 0.1])
    assert rates(3, schedule="exponential", gamma=0.5) == [1, 0.5, 0.25]
    cosine = rates(10, schedule="cosine")
    assert cosine[0] == 1 and cosine == sorted(cosine, reverse=True) and 0 < cosine[-1] < 0.03


def test_decay_of_the_first_layer_alone():
    model = build_model(ModelConfig(name="gcn", layers=2, hidden=4), 3, 2)
    optimiser = build_optimiser(OptimConfig(weight_decay=0.1, decay_first_layer_only=True), model)
    first = {id(p) for p in model.layers[0].parameters()}
    for group in optimiser.param_groups:
        assert all((id(p) in first) == (group["weight_decay"] > 0) for p in group["params"])
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(model.parameters()))


TORCHS = {
    "adam": lambda groups, config: torch.optim.Adam(groups, lr=config.lr, foreach=True),
    "adamw": lambda groups, config: torch.optim.AdamW(groups, lr=config.lr, foreach=True),
    "sgd": lambda groups, config: torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum),
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TORCHS)
def test_every_optimiser_moves_weights_as_torchs_does_to_the_bit(name, dtype, decay, momentum):
    """Also where rates change, where some weights decay and others do not, and where one has no gradient at times."""
    torch.manual_seed(2)
    ours = build_model(ModelConfig(name="sage", layers=3, hidden=7), 5, 3).to(dtype)
    torchs = copy.deepcopy(ours)
    config = OptimConfig(name=name, lr=0.03, weight_decay=decay, momentum=momentum, decay_first_layer_only=True)
    mine = build_optimiser(config, ours)
    pairs = dict(zip(ours.parameters(), torchs.parameters(), strict=True))
    groups = [
        {"params": [pairs[p] for p in group["params"]], "weight_decay": group["weight_decay"]}
        for group in mine.param_groups
    ]
    theirs = TORCHS[name](groups, config)
    for step in range(1, 6):
        for optimiser in (mine, theirs):
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = config.lr / step
        for number, (one, other) in enumerate(pairs.items()):
            assert one.grad is None and other.grad is None
            if (number + step) % 4:
                one.grad = torch.randn_like(one) * 10.0 ** (step - 3)
                other.grad = one.grad.clone()
        mine.step()
        theirs.step()
        for one, other in pairs.items():
            assert torch.equal(one, other)
            states = [{k: v for k, v in o.state[p].items() if v is not None} for o, p in ((mine, one), (theirs, other))]
            assert states[0].keys() == states[1].keys()
            assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_an_optimiser_takes_no_closure_and_can_fill_gradients_with_zeros():
    model = build_model(ModelConfig(name="gcn", layers=1, hidden=4), 3, 2)
    optimiser = build_optimiser(OptimConfig(), model)
    with pytest.raises(TypeError, match="takes no closure"):
        optimiser.step(lambda: 0.0)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    optimiser.zero_grad(set_to_none=False)
    assert first.grad is not None and not first.grad.any()
