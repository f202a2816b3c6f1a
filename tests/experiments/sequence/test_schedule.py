"""How the learning rate of a training goes, and what that means for its number of epochs."""

from dataclasses import replace

import pytest

from experiments.files import UserError
from experiments.nmt.config import TranslationConfig
from experiments.sequence.model import SequenceTraining
from tests.experiments.nmt.tiny_text import TINY, run, write_text


@pytest.fixture
def config(tmp_path):
    text = write_text(tmp_path / "text")
    options = TINY | {"learning_rate": 0.002, "resume": True, "k_max": None, "beam": 1}
    return TranslationConfig(**options, guide="soft", text=text, out=tmp_path / "run", patience=2)


@pytest.fixture
def rates(monkeypatch):
    """Learning rate of every training step; at step 9 the training is interrupted where "stop" is among them."""
    found, step = [], SequenceTraining.training_step

    def recorded(self, batch, batch_idx):
        if "stop" in found and self.global_step == 9:
            raise KeyboardInterrupt
        found.append(self.optimizers().param_groups[0]["lr"])
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SequenceTraining, "training_step", recorded)
    return found


def test_one_cycle_is_planned_over_all_epochs_and_ends_as_planned_after_an_interruption(config, rates):
    """It rises for a tenth of the steps and falls to nothing."""
    config = replace(config, schedule="one-cycle", max_epochs=4)
    whole = run(config)
    assert len(rates) == 12
    peak = rates.index(max(rates))
    assert peak in (1, 2)
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < max(rates) / 100 < 0.002 / 100 + 1e-9
    with pytest.raises(UserError, match="max_epochs"):
        run(replace(config, max_epochs=5))
    again = replace(config, out=config.out.with_name("again"))
    rates[:] = ["stop"]
    with pytest.raises(KeyboardInterrupt):
        run(again)
    rates.clear()
    assert run(again)["test_ppl"] == whole["test_ppl"]


def test_the_other_schedule_has_one_rate_until_there_is_a_plateau_and_may_be_made_longer(config, rates):
    for epochs in (1, 2):
        assert run(replace(config, max_epochs=epochs))["epochs"] == epochs
    assert set(rates) == {0.002}
