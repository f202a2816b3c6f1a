"""What all functions refuse, and what is loaded when."""

import math
import subprocess
import sys

import pytest
import torch

from pyro_attention.analysis import (
    brier_score,
    classification_scores,
    decompose_uncertainty,
    expected_calibration_error,
    fit_temperature,
    max_probability,
    negative_log_likelihood,
    pavpu,
    top_two_p_values,
)

LABELS = torch.tensor([0, 1, 1])
SCORES = [classification_scores, negative_log_likelihood, brier_score, expected_calibration_error]
OF_PROBABILITIES = [
    *((lambda probabilities, f=f: f(probabilities, LABELS)) for f in SCORES),
    max_probability,
    decompose_uncertainty,
]
OF_LOGITS = [
    lambda logits: fit_temperature(logits, LABELS),
    lambda logits: fit_temperature(torch.zeros(3, 2), LABELS)(logits),
    lambda logits: pavpu(logits, torch.ones(3), test="logits"),
    lambda logits: top_two_p_values(logits, test="probabilities"),
]
NAMES = {"probabilities": OF_PROBABILITIES, "logits": OF_LOGITS}
CASES = [(name, function) for name, functions in NAMES.items() for function in functions]


def spoiled(value):
    probabilities = torch.full((2, 3, 2), 0.5)
    probabilities[1, 2, 0] = value
    return probabilities


@pytest.mark.parametrize("function", OF_PROBABILITIES)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "1 of 12 probabilities are NaN"),
        (-0.5, "probabilities have an entry -0.5, expected >= 0; apply"),
        (0.6, r"sum to 1.1 over the classes \(the last dimension\), expected 1; apply .softmax"),
        (0.4, "probabilities of an item sum to 0.9 over"),
        (math.inf, "probabilities of an item sum to inf over"),
    ],
)
def test_no_probabilities(function, value, message):
    function(spoiled(0.5))
    with pytest.raises(ValueError, match=message):
        function(spoiled(value))


@pytest.mark.parametrize("function", OF_LOGITS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(function, value):
    function(spoiled(1.0))
    with pytest.raises(ValueError, match=r"1 of 12 logits are NaN or infinite, expected finite .* such as -1e4"):
        function(spoiled(value))


@pytest.mark.parametrize(("name", "function"), CASES)
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 2), (2, 3, 1), (3,), (1, 2, 3, 2)], ids=str)
def test_wrong_shapes(name, function, shape):
    with pytest.raises(ValueError, match=rf"{name} have shape \({shape[0]},.*\), expected \["):
        function(torch.ones(shape))


@pytest.mark.parametrize(("name", "function"), CASES)
def test_wrong_types(name, function):
    with pytest.raises(TypeError, match=f"{name} have dtype torch.int64, expected a floating-point tensor"):
        function(torch.ones(2, 3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=f"{name} have type list"):
        function([[0.5, 0.5]])


@pytest.mark.parametrize("function", [*SCORES, fit_temperature])
@pytest.mark.parametrize("shape", [(3, 2), (5, 3, 2)], ids=str)
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0, 1]), ValueError, r"labels have shape \(2,\), expected \[items\] = \(3,\)"),
        (torch.tensor([[0], [1], [0]]), ValueError, r"labels have shape \(3, 1\)"),
        (torch.tensor([0, 1, 2]), ValueError, "labels run from 0 to 2, expected 0 to 1; drop items without a label"),
        (torch.tensor([0, -100, 1]), ValueError, "labels run from -100 to 1"),
        (torch.tensor([0.0, 1.0, 1.0]), TypeError, "labels have dtype torch.float32, .* with .long()"),
        ([0, 1, 1], TypeError, "labels have type list"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), ValueError, "labels are on meta, the predictions on cpu"),
    ],
)  # fmt: skip
def test_wrong_labels(function, shape, labels, error, message):
    with pytest.raises(error, match=message):
        function(torch.full(shape, 0.5), labels)


@pytest.mark.parametrize("function", [classification_scores, expected_calibration_error])
@pytest.mark.parametrize("bins", [0, -1, 2.5])
def test_wrong_bins(function, bins):
    with pytest.raises(ValueError, match=f"bins is {bins}, expected a whole number of at least 1"):
        function(torch.full((3, 2), 0.5), LABELS, bins=bins)


@pytest.mark.parametrize("function", [*OF_PROBABILITIES, *OF_LOGITS])
def test_gradients_are_not_tracked(function):
    result = function(torch.full((2, 3, 2), 0.5, requires_grad=True))
    for value in [result, *getattr(result, "__dict__", {}).values()]:
        assert not getattr(value, "requires_grad", False)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("torchmetrics.functional.classification", classification_scores),
        ("torchmetrics.functional.classification", expected_calibration_error),
        ("scipy.special", lambda probabilities, _: pavpu(probabilities[None], torch.ones(3), test="logits")),
    ],
)
def test_missing_extra(monkeypatch, module, function):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"needs \w+: pip install 'pyro-attention\[analysis\]'"):
        function(torch.full((3, 2), 0.5), LABELS)


def test_nothing_is_loaded_before_it_is_needed():
    loaded = "[name for name in ('pyro_attention.analysis', 'scipy', 'torchmetrics') if name in sys.modules]"
    code = f"import sys, pyro_attention; print({loaded}); import pyro_attention.analysis; print({loaded})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.splitlines() == ["[]", "['pyro_attention.analysis']"]
