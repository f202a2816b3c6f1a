"""Checkpoints that are no checkpoints: one line that names the file and the remedy."""

import io
import shutil

import pytest
import safetensors.torch
import torch

from experiments.files import UserError
from experiments.harness.training import load_best
from experiments.harness.weights import read_weights, write_weights
from tests.experiments.harness.test_training import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of a finished training."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, epochs=2)
    return folder


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def changed(*path, to=None):
    """Set one entry of a checkpoint to something else, or remove it."""

    def change(data):
        checkpoint = part = torch.load(io.BytesIO(data), weights_only=True)
        for name in path[:-1]:
            part = part[name]
        if to is None:
            del part[path[-1]]
        else:
            part[path[-1]] = to
        return saved(checkpoint)

    return change


WEIGHT = "objective.model.scores.weight"
BAD = {
    "truncated": lambda data: data[: len(data) // 2],
    "another file": lambda _: saved({"state_dict": {}, "hyper_parameters": {}, "epoch": 3}),
    "no fit loop": changed("loops", "fit_loop"),
    "no history": changed("callbacks", "History"),
    "weight missing": changed("state_dict", WEIGHT),
    "weight of another shape": changed("state_dict", WEIGHT, to=torch.zeros(5)),
    "no moments": changed("optimizer_states", 0, "state"),
    "optimizer missing": changed("optimizer_states", 0),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_a_run_does_not_go_on_from_a_bad_checkpoint(change, trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoints" / "last.ckpt"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=r"(?s)checkpoints/last\.ckpt .*pass --overwrite"):
        train(tmp_path, resume=True)


# the best weights


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A network to load weights into."""
    return train(tmp_path_factory.mktemp("fresh"), epochs=1)[0]


def earlier_release(folder, trained):
    """The folder of a training as earlier releases left it."""
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    path = folder / "checkpoints" / "best.safetensors"
    path.with_name("best.ckpt").write_bytes(saved({"epoch": 0, "state_dict": safetensors.torch.load_file(path)}))
    path.unlink()
    return path.with_name("best.ckpt")


@pytest.mark.parametrize("shape", [None, (5,)])
def test_weights_of_another_network_are_not_loaded(shape, trained, fresh, tmp_path):
    weights = safetensors.torch.load_file(trained / "checkpoints" / "best.safetensors")
    del weights[WEIGHT]
    write_weights(tmp_path, weights if shape is None else weights | {WEIGHT: torch.zeros(shape)}, epoch=0)
    with pytest.raises(UserError, match=r"(?s)best\.safetensors does not fit this network .*pass --overwrite"):
        load_best(fresh, tmp_path)


def test_weights_of_an_earlier_release_go_on_being_loaded_until_there_are_others(trained, tmp_path):
    expected = safetensors.torch.load_file(trained / "checkpoints" / "best.safetensors")
    older = earlier_release(tmp_path, trained)
    module, _ = train(tmp_path / "other", epochs=1)
    load_best(module, tmp_path)
    torch.testing.assert_close(dict(module.state_dict()), expected)
    train(tmp_path, epochs=3, resume=True)
    assert not older.exists()
    assert older.with_name("best.safetensors").exists()


def test_weights_are_loaded_without_pickle_and_without_this_harness(trained):
    from tests.experiments.harness.test_training import Model

    weights = safetensors.torch.load_file(trained / "checkpoints" / "best.safetensors")
    model, prefix = Model(), "objective.model."
    of_model = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    model.load_state_dict(of_model)
    torch.testing.assert_close(dict(model.state_dict()), of_model)
    assert {name.split(".")[1] for name in weights} <= {"model", "guide"}


@pytest.mark.parametrize(
    "weights",
    [
        {"a": (one := torch.arange(6.0).reshape(2, 3)), "tied": one, "turned": one.mT, "part": one[0]},
        {"scalar": torch.tensor(2), "empty": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
        {"repeated": torch.ones(1).expand(3, 4), "true": torch.tensor([True, False])},
    ],
    ids=["shared", "kinds", "views"],
)
def test_weights_come_back_under_each_of_their_names(weights, tmp_path):
    write_weights(tmp_path, weights, epoch=3)
    found = read_weights(tmp_path / "checkpoints" / "best.safetensors")
    torch.testing.assert_close(found, weights, rtol=0, atol=0)
