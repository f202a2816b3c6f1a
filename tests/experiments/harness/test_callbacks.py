"""Random states in checkpoints, the rule of early stopping, and the history on disk."""

import random
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch

from experiments.harness.callbacks import EarlyStopping, History, RandomState


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def draw_on_cuda():
    return torch.rand(3, device="cuda").tolist()


@pytest.mark.parametrize("draw", [draw, pytest.param(draw_on_cuda, marks=pytest.mark.cuda)])
def test_random_states_come_back_from_a_file_without_pickled_objects(draw, tmp_path):
    torch.save(RandomState(0).state_dict(), tmp_path / "state")
    expected = draw()
    pyro.set_rng_seed(7)
    assert draw() != expected
    RandomState(0).load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == expected


@pytest.mark.parametrize(
    ("epochs", "kept", "waited"),
    [
        ([(0.6, 0.9)], [True], [0]),  # both better
        ([(0.5, 1.0)], [True], [0]),  # ties count
        ([(0.6, 1.1)], [False], [0]),  # one of them
        ([(0.4, 0.9)], [False], [0]),
        ([(0.4, 1.1)], [False], [1]),  # none
        ([(float("nan"), float("nan"))], [False], [1]),
        # the third epoch beats the first one on both, but not the best of each
        ([(0.7, 2.0), (0.6, 0.9), (0.7, 0.9)], [False, False, True], [0, 0, 0]),
        # the end comes after two epochs in a row that are good for nothing
        ([(0.4, 1.1), (0.5, 1.2), (0.4, 1.1)], [False] * 3, [1, 0, 1]),
        ([(0.4, 1.1), (0.5, 1.2), (0.4, 1.1), (0.4, 1.1)], [False] * 4, [1, 0, 1, 2]),
    ],
)
def test_any_metric_resets_the_counter_and_all_keep_the_weights(epochs, kept, waited):
    rule, found = EarlyStopping({"accuracy": "max", "loss": "min"}, patience=2), []
    for accuracy, loss in [(0.5, 1.0), *epochs]:
        found.append((rule.update({"accuracy": accuracy, "loss": loss}), rule.waited))
    assert found == [(True, 0), *zip(kept, waited, strict=True)]
    assert rule.exhausted == (waited[-1] == 2)


def test_the_last_epoch_is_kept_when_asked_for_unless_its_metrics_are_not_finite():
    rule = EarlyStopping({"accuracy": "max"}, patience=3, keep="last")
    assert [rule.update({"accuracy": value}) for value in (0.8, 0.5, float("nan"))] == [True, True, False]
    assert (rule.best, rule.waited) == ({"accuracy": 0.8}, 2)


def test_history_leaves_metrics_empty_that_an_epoch_does_not_have(tmp_path):
    history = History(tmp_path / "history.csv")
    history.rows = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5, "kl": 2.0}]
    history.write()
    assert history.path.read_text() == "epoch,loss,kl\n0,1.0,\n1,0.5,2.0\n"


def test_every_rank_draws_noise_of_its_own_in_every_epoch():
    drawn = {}
    for rank, epoch in ((0, 0), (1, 0), (2, 0), (1, 1)):
        pyro.set_rng_seed(0)
        RandomState(0).on_train_epoch_start(SimpleNamespace(global_rank=rank, current_epoch=epoch))
        drawn[rank, epoch] = draw()
    for generator in zip(*drawn.values(), strict=True):
        assert len(set(generator)) == 4
    pyro.set_rng_seed(0)
    assert draw() == drawn[0, 0]  # the first rank draws as a run alone
