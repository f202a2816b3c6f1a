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


def test_random_states_come_back_from_a_file_without_pickled_objects(tmp_path):
    torch.save(RandomState().state_dict(), tmp_path / "state")
    expected = draw()
    pyro.set_rng_seed(7)
    assert draw() != expected
    RandomState().load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == expected


@pytest.mark.cuda
def test_random_states_of_cuda_devices_come_back():
    state = RandomState().state_dict()
    expected = torch.rand(3, device="cuda")
    RandomState().load_state_dict(state)
    assert torch.rand(3, device="cuda").equal(expected)


def stopping(patience=2):
    return EarlyStopping({"accuracy": "max", "loss": "min"}, patience=patience)


def follow(rule, *epochs):
    """Which epochs are kept, and how long the rule has waited after each of them."""
    kept, waited = [], []
    for accuracy, loss in epochs:
        kept.append(rule.update({"accuracy": accuracy, "loss": loss}))
        waited.append(rule.waited)
    return kept, waited


@pytest.mark.parametrize(
    ("second", "kept", "waited"),
    [
        ((0.6, 0.9), True, 0),  # both better
        ((0.5, 1.0), True, 0),  # ties count
        ((0.6, 1.1), False, 0),  # one of them
        ((0.4, 0.9), False, 0),
        ((0.4, 1.1), False, 1),  # none
        ((float("nan"), float("nan")), False, 1),
    ],
)
def test_any_metric_resets_the_counter_and_all_keep_the_weights(second, kept, waited):
    assert follow(stopping(), (0.5, 1.0), second) == ([True, kept], [0, waited])


def test_the_bests_are_of_different_epochs():
    # the third epoch beats the first one on both, but not the best of each
    kept, waited = follow(stopping(), (0.5, 1.0), (0.7, 2.0), (0.6, 0.9), (0.7, 0.9))
    assert kept == [True, False, False, True]
    assert waited == [0, 0, 0, 0]


def test_training_stops_after_so_many_epochs_without_a_reset():
    rule = stopping(patience=2)
    follow(rule, (0.5, 1.0), (0.4, 1.1), (0.5, 1.2), (0.4, 1.1))
    assert not rule.exhausted
    follow(rule, (0.4, 1.1))
    assert rule.exhausted


@pytest.mark.parametrize(("monitor", "patience"), [({}, 1), ({"loss": "min"}, 0)])
def test_impossible_rules_are_refused(monitor, patience):
    with pytest.raises(ValueError, match="patience"):
        EarlyStopping(monitor, patience=patience)


def test_history_leaves_metrics_empty_that_an_epoch_does_not_have(tmp_path):
    history = History(tmp_path / "history.csv")
    history.rows = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5, "kl": 2.0}]
    history.write()
    assert history.path.read_text() == "epoch,loss,kl\n0,1.0,\n1,0.5,2.0\n"


def test_every_rank_draws_noise_of_its_own():
    drawn = []
    for rank in (0, 0, 1, 2):
        pyro.set_rng_seed(0)
        RandomState().on_train_start(SimpleNamespace(global_rank=rank))
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    for generator in zip(*drawn[1:], strict=True):
        assert len(set(generator)) == 3
    pyro.set_rng_seed(0)
    assert draw() == drawn[0]  # the first rank draws as a run alone
