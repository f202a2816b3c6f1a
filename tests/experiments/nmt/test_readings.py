"""Networks that are trained by one scheme and read by another: K-max, draws, exact sums, soft attention."""

import json
import math

import pytest
import torch

from experiments.files import UserError
from experiments.nmt.config import ReadingsConfig
from experiments.nmt.readings import as_alignment, compare, perplexity_under, readings
from experiments.nmt.task import load_text, load_trained
from experiments.nmt.texts import batches
from experiments.sequence.model import model_arguments, predictive_perplexity
from models.decoding import Inference, target_log_probs
from pyro_attention import AlignmentPrior, Soft
from tests.experiments.nmt.tiny_text import command_line


@pytest.fixture(params=["translation_run", "reverse_run"])
def trained(request):
    """A network of categorical_enum, and one of soft attention."""
    return load_trained(request.getfixturevalue(request.param))


def enumerated(trained, batch, kept):
    """Log probabilities of the words by a sum over alignments, one by one; of each word those that are ``kept``."""
    model = trained.model
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    found = []
    for step, words in zip(model.steps(state, batch.target_in), batch.target_out.unbind(1), strict=True):
        rows = []
        for row, word in enumerate(words.tolist()):
            weights, alignments = step.log_prior[row].exp().tolist(), kept(step.log_prior[row])
            f = model.likelihood(step.queries[row], step.state.memory[row]).logits[:, word].exp().tolist()
            total = sum(weights[place] for place in alignments)
            rows.append(math.log(sum(weights[place] / total * f[place] for place in alignments)))
        found.append(torch.tensor(rows))
    return torch.stack(found, 1).where(batch.target_mask, 0)


def first_batch(trained):
    return next(iter(batches(trained, load_text(trained.config, "test").first(2))))


@pytest.mark.parametrize("k", [1, 2, 100])
@torch.no_grad()
def test_k_max_is_the_sum_over_the_largest_weights_whatever_the_network_was_trained_by(trained, k):
    batch = first_batch(trained)
    trained.module.eval()
    with as_alignment(trained.model):
        # without the feed, whose context is that of the largest weights, too
        inference = Inference(k_max=k)
        found = target_log_probs(trained.model, *model_arguments(batch), inference=inference)[:, :1]
        expected = enumerated(trained, batch, lambda weights: weights.argsort(descending=True)[:k].tolist())[:, :1]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        exact = target_log_probs(trained.model, *model_arguments(batch))
        torch.testing.assert_close(
            exact, enumerated(trained, batch, lambda weights: range(len(weights))), rtol=1e-4, atol=1e-4
        )
    assert not isinstance(trained.model.attention.prior, AlignmentPrior) or trained.config.guide != "soft"


@torch.no_grad()
def test_draws_estimate_the_sum(trained):
    batch = first_batch(trained)
    trained.module.eval()
    torch.manual_seed(0)
    with as_alignment(trained.model):
        exact = target_log_probs(trained.model, *model_arguments(batch)).exp()
        means = torch.stack([
            target_log_probs(trained.model, *model_arguments(batch), inference=Inference(draws=50)).exp()
            for _ in range(25)
        ])  # fmt: skip
    error = means.std(0) / 5
    assert ((means.mean(0) - exact).abs() <= 5 * error + 1e-6).all()


def test_each_reading_of_its_own_scheme_is_its_predictive_perplexity(trained):
    text = load_text(trained.config, "test")
    own = predictive_perplexity(trained, batches(trained, text))
    name = "soft" if trained.config.guide == "soft" else "exact"
    assert perplexity_under(trained, text, readings((), 3)[name]) == pytest.approx(own, rel=1e-6)
    # as many as there are: K-max is exact
    values = {name: perplexity_under(trained, text, one) for name, one in readings((1, 500), 3).items()}
    assert values["K = 500"] == pytest.approx(values["exact"], rel=1e-6)
    assert all(math.isfinite(value) for value in values.values())


def test_draws_are_for_alignments(reverse_run):
    model = load_trained(reverse_run).model
    with pytest.raises(ValueError, match=r"draws is 3, .* expected alignments that are summed out"):
        Inference(draws=3, family=Soft()).check(model)
    with pytest.raises(ValueError, match="draws is -1, expected at least 0"):
        Inference(draws=-1)


def test_the_table(translation_run, reverse_run, tmp_path, capsys):
    out = tmp_path / "out"
    line = ["readings", "--k-max", "[1,2]", "--draws", "2", "--out", out, "--results", tmp_path]
    runs = json.dumps([str(translation_run), str(reverse_run), str(reverse_run)])
    assert command_line(*line, runs) == 0
    assert "categorical_enum" in capsys.readouterr().out
    rows = json.loads((tmp_path / "readings-own.json").read_text())["rows"]
    assert {row["column"] for row in rows} == {"soft", "exact", "2 draws", "K = 1", "K = 2"}
    assert len(next(row for row in rows if row["labels"]["trained"] == "soft")["values"]) == 2
    names = json.dumps([translation_run.name, reverse_run.name, reverse_run.name])
    assert f"readings '{names}' --k-max" in (out / "report.md").read_text()
    (out / "report.md").write_text("mine")
    assert command_line(*line, runs) == 1
    assert "report.md is there already and would be lost; choose another --out, or pass" in capsys.readouterr().err
    assert (out / "report.md").read_text() == "mine"
    with pytest.raises(UserError, match=r"runs is empty, expected .* such as '\[\"RUN\", \"OTHER\"\]'"):
        compare(ReadingsConfig(runs=()))
