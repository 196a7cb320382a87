"""Whose rows of which epoch are read, and when training goes exactly: by position and losses, never by timing."""

import math

from weft.serverless.schedule import STEADY_EPOCHS, Schedule


def test_in_order_no_row_is_late() -> None:
    assert not any(Schedule(None, 8).is_stale(one, other) for one in range(8) for other in range(8))
    assert not any(Schedule(0, 8).is_stale(one, other) for one in range(8) for other in range(one + 1))


def test_rows_of_leaders_are_never_late() -> None:
    schedule = Schedule(0, 8)
    assert not any(schedule.is_stale(one, leader) for one in range(8) for leader in range(schedule.num_never_stale))
    assert all(any(schedule.is_stale(one, other) for one in range(8)) for other in range(schedule.num_never_stale, 8))


def test_an_epoch_is_exact_until_losses_are_known_and_while_they_rise() -> None:
    schedule = Schedule(0, 8)
    for epoch, loss in enumerate([2.0, 1.8, 1.7, 1.6, 1.5, 1.55, 1.65, 1.5], 1):
        assert schedule.is_exact(epoch) == (epoch <= STEADY_EPOCHS or epoch == 8), epoch
        schedule.record_loss(epoch, loss)
    assert not schedule.is_exact(9)
    schedule.record_loss(9, math.nan)
    assert schedule.is_exact(10)


def test_a_schedule_goes_on_as_it_was() -> None:
    """Of a checkpoint after any epoch, whether its rows are there or not."""
    losses = [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.6, 1.4, 1.39, 1.38, 1.37, 1.36, 1.355, 1.354]
    whole = Schedule(0, 8, plateau=0.2)
    exact = {1: True}
    for epoch, loss in enumerate(losses, 1):
        whole.record_loss(epoch, loss)
        exact[epoch + 1] = whole.is_exact(epoch + 1)
    assert whole.exact_from is not None and {exact[epoch] for epoch in range(6, 12)} == {True, False}
    for stop in range(1, len(losses)):
        before = Schedule(0, 8, plateau=0.2)
        for epoch, loss in enumerate(losses[:stop], 1):
            before.record_loss(epoch, loss)
        again = Schedule.resumed(before.state(), True, staleness=0, intervals=8, first_epoch=stop + 1, plateau=0.2)
        cold = Schedule.resumed(before.state(), False, staleness=0, intervals=8, first_epoch=stop + 1, plateau=0.2)
        assert cold.is_exact(stop + 1)
        assert again.is_exact(stop + 1) == exact[stop + 1]
        for epoch, loss in enumerate(losses[stop:], stop + 1):
            again.record_loss(epoch, loss)
            assert again.is_exact(epoch + 1) == exact[epoch + 1]
        assert again.exact_from == whole.exact_from


def test_epochs_are_exact_once_the_loss_hardly_falls() -> None:
    schedule = Schedule(0, 8, plateau=0.5)
    for epoch in range(1, 31):
        schedule.record_loss(epoch, 1.0 + 1.0 / epoch)
    assert schedule.exact_from is not None and schedule.is_exact(31)
