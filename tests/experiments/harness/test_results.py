import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.folder import open_run
from experiments.harness.options import RunOptions
from experiments.harness.results import read_metrics, write_environment, write_metrics
from experiments.report.classification import score
from experiments.report.tables import as_table


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """A script.

    Args:
        some_weight: A number.
    """

    some_weight: float = 1.0


# files


def test_metrics_are_flat_and_valid_json(tmp_path):
    definitions = {"a": "one", "b": "two", "c": "not measured"}
    assert read_metrics(tmp_path) is None
    write_metrics(tmp_path, {"a": 0.5, "b": math.nan}, definitions)
    content = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert content == {"a": 0.5, "b": None, "definitions": {"a": "one", "b": "two"}}
    metrics = read_metrics(tmp_path)
    assert metrics["a"] == 0.5
    assert math.isnan(metrics["b"])


def test_environment_names_torch(tmp_path):
    write_environment(tmp_path, torch.device("cpu"))
    found = json.loads((tmp_path / "environment.json").read_text())["packages"]["torch"]
    # which build it is, such as +cpu, stands in only one of the two where torch comes from a package index
    assert found.partition("+")[0] == torch.__version__.partition("+")[0]


def test_table():
    table = as_table([{"guide": "soft", "accuracy": 0.83, "n": 3}, {"guide": "weibull", "accuracy": 0.83814}])
    assert table.splitlines() == ["guide    accuracy  n", "soft         0.83  3", "weibull    0.8381"]


# the folder of a run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--resume to continue"),  # it is not started twice
        ({"resume": True, "some_weight": 2.0}, r"some_weight 1\.0 instead of 2\.0"),
    ],
)
def test_a_run_goes_on_with_the_same_configuration_alone(options, said, tmp_path):
    open_run(tmp_path, Options())
    open_run(tmp_path, Options(resume=True, progress=False, device="cpu", checkpoint_every=2))
    with pytest.raises(UserError, match=said):
        open_run(tmp_path, Options(**options))


# the command line


def run_options(*arguments):
    seen = []
    code = run_script(Options, seen.append, name="script", arguments=arguments)
    return seen[0] if code == 0 else code


def test_options_have_dashes_and_switches_no_values():
    arguments = ["--some-weight", "2", "--resume", "--no-progress", "--data-root", "/data"]
    expected = Options(some_weight=2.0, resume=True, progress=False, data_root=Path("/data"))
    assert run_options(*arguments) == expected


def test_a_saved_configuration_is_read_again(tmp_path):
    options = Options(some_weight=2.0, overwrite=True, out=tmp_path)
    open_run(tmp_path, options)
    assert run_options("--config", str(tmp_path / "config.yaml")) == replace(options, overwrite=False)


def test_bugs_keep_their_traceback():
    def bug(options):
        raise IndexError

    with pytest.raises(IndexError):
        run_script(Options, bug, name="script", arguments=[])


# scores of a classifier


@pytest.mark.parametrize(
    ("probabilities", "labels", "accuracy", "nll", "ece", "brier"),
    [
        (torch.eye(3), [0, 1, 2], 1.0, 0.0, 0.0, 0.0),  # certain and right
        (torch.eye(2), [1, 0], 0.0, -math.log(1e-12), 1.0, 2.0),  # certain and wrong
        (  # 80 % sure and right in 60 %
            torch.tensor([[0.8, 0.2]]).expand(10, 2), [0] * 6 + [1] * 4, 0.6,
            -0.6 * math.log(0.8) - 0.4 * math.log(0.2), 0.2, 0.6 * 2 * 0.2**2 + 0.4 * 2 * 0.8**2,
        ),
    ],
)  # fmt: skip
def test_scores_of_known_predictions(probabilities, labels, accuracy, nll, ece, brier):
    scores = score(probabilities, torch.tensor(labels))
    expected = {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": brier}
    assert scores == pytest.approx(expected, rel=1e-5, abs=1e-6)
