"""How the learning rate of a training goes, and what that means for its number of epochs."""

from dataclasses import replace

import pytest
import torch

from experiments.files import UserError
from experiments.nmt.config import TranslationConfig
from experiments.sequence.model import SequenceTraining
from tests.experiments.nmt.tiny_text import TINY, run, write_text


@pytest.fixture
def config(tmp_path):
    text = write_text(tmp_path / "text")
    return TranslationConfig(**TINY, guide="soft", text=text, out=tmp_path / "run", patience=2)


@pytest.fixture
def rates(monkeypatch):
    """Learning rate of every training step."""
    found, step = [], SequenceTraining.training_step

    def recorded(self, batch, batch_idx):
        found.append(self.optimizers().param_groups[0]["lr"])
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SequenceTraining, "training_step", recorded)
    return found


def test_one_cycle_rises_for_a_tenth_of_the_steps_and_falls_to_nothing(config, rates):
    run(replace(config, schedule="one-cycle", max_epochs=7, learning_rate=0.002))
    assert len(rates) == 21
    peak = torch.tensor(rates).argmax().item()
    assert peak in (1, 2)
    assert max(rates) <= 0.002
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.002 / 1000


def test_a_planned_training_is_not_made_longer_and_another_one_is(config, rates):
    planned = replace(config, schedule="one-cycle", resume=True)
    run(planned)
    with pytest.raises(UserError, match="max_epochs"):
        run(replace(planned, max_epochs=3))
    other = replace(config, out=config.out.with_name("other"), resume=True, learning_rate=0.002)
    rates.clear()
    assert run(other)["epochs"] == 2
    assert run(replace(other, max_epochs=3))["epochs"] == 3
    assert set(rates) == {0.002}  # one rate until there is a plateau


def test_a_planned_training_that_is_interrupted_ends_as_if_it_had_not_been(config, monkeypatch):
    config = replace(config, schedule="one-cycle", max_epochs=3, resume=True)
    whole, step = run(config), SequenceTraining.training_step

    def stopping(self, batch, batch_idx):
        if self.current_epoch == 2:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    again = replace(config, out=config.out.with_name("again"))
    with monkeypatch.context() as context:
        context.setattr(SequenceTraining, "training_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(again)
    assert run(again)["test_ppl"] == whole["test_ppl"]
