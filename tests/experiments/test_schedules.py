"""Learning rates that are planned over all steps, where these are few, too."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from experiments.data.images.image_features import ContentEncoder, content_encoder
from experiments.finetune.glue import GlueTask
from experiments.neural_process.config import NeuralProcessConfig
from experiments.neural_process.task import NeuralProcessTask
from experiments.options import TrainingOptions
from experiments.training import OneCycleTraining, fit, one_cycle
from pyro_attention import AttentionELBO, AttentionGuide, Weibull
from tests.experiments.finetune.conftest import place, tiny_config  # noqa: F401 (fixtures)
from tests.experiments.test_training import DATA, Model, Training

STEPS = [1, 2, 3, 5, 9, 10, 11, 19, 20, 21, 30, 100]


def rates(steps: int) -> list[float]:
    """The learning rate of every step, as a training takes them."""
    optimizer = torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=0.5)
    schedule, found = one_cycle(optimizer, 0.5, steps), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("steps", STEPS)
def test_the_cycle_rises_for_a_tenth_of_the_steps_and_falls_to_zero(steps):
    found = rates(steps)
    assert all(math.isfinite(rate) and 0 <= rate <= 0.5 for rate in found)
    top = found.index(max(found))
    assert max(found) > 0.25
    assert top in (0, steps // 10 - 1, steps // 10)
    assert found == sorted(found[:top]) + sorted(found[top:], reverse=True)
    if steps > 1:
        assert found[-1] == pytest.approx(0, abs=1e-5)
    if steps % 10 == 0 and steps > 10:
        expected = [0.02 + 0.48 * step / (steps // 10 - 1) for step in range(steps // 10)] if steps > 20 else []
        assert found[: len(expected)] == pytest.approx(expected)


class OneCycle(OneCycleTraining, Training):
    """A small network under a planned learning rate."""


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 20])
def test_a_training_of_few_steps_moves_the_weights(steps, tmp_path):
    model = Model()
    module = OneCycle(model, AttentionGuide(model, Weibull()), AttentionELBO(), learning_rate=0.05)
    before = model.scores.weight.detach().clone()
    one_batch, val = DataLoader(DATA, batch_size=8), DataLoader(DATA, batch_size=8)
    config = TrainingOptions(progress=False, max_epochs=steps)
    fitted = fit(config, module, one_batch, val, folder=tmp_path, monitor={"val_loss": "min"}, patience=99, keep="last")
    assert fitted.updates == steps
    assert (model.scores.weight - before).abs().max() > 0.02


def test_tasks_train_for_ten_steps_and_for_one(tmp_path, tiny_config):  # noqa: F811
    options = {"functions": 4, "num_samples": 2, "progress": False}
    for steps, epochs in ((10, 1), (10, 2), (1, 1)):
        config = NeuralProcessConfig(steps=steps, max_epochs=epochs, out=tmp_path / f"{steps}-{epochs}", **options)
        metrics = NeuralProcessTask().run(config)
        assert metrics["updates"] == steps
        assert all(math.isfinite(value) for value in metrics.values())
    one = tiny_config("rte", tmp_path / "rte", train_share=0.1, max_epochs=1)
    assert GlueTask().run(one)["updates"] == 1


def test_an_encoder_that_has_one_step_learns_in_it(tmp_path):
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    made = [
        content_encoder(pixels, [["a dog"], ["a cat"]] * 2, tmp_path, epochs=epochs).module.state_dict()
        for epochs in (1, 2)
    ]
    torch.manual_seed(0)
    start = ContentEncoder(2).state_dict()
    for weights in made:
        assert (weights["grid.1.0.weight"] - start["grid.1.0.weight"]).abs().max() > 1e-5
