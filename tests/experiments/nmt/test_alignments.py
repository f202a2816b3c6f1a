"""Alignments of a trained network: NULL, jumps, and how far the inference network is from the exact posterior."""

import math
from dataclasses import replace

import pytest
import torch

from experiments.datasets.text.vocabulary import Vocabulary
from experiments.nmt.align import COLUMNS
from experiments.nmt.alignments import aligned_pairs, alignment_summary
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import perplexity
from experiments.nmt.model import batches, build, load_trained, read_config
from experiments.sequence.alignments import align_batch, has_posterior_gap
from experiments.sequence.model import model_arguments
from models.score_terms import PROBABILITY
from pyro_attention.analysis import hard_alignment, write_pharaoh


def test_null_has_no_link(translation_run):
    config = replace(read_config(translation_run, device="cpu"), guide="marginal", null_word=True, diagonal=True)
    trained = build(config, Vocabulary.load(translation_run / "vocabulary.json"))
    text = load_text(config, "test")
    for pair in aligned_pairs(trained, text, num_samples=1):
        # what fast_align gives to NULL is missing from every row of the prior
        assert pair.prior.sum(-1).tolist() == pytest.approx([1 - PROBABILITY] * len(pair.target), rel=1e-4)
        assert (pair.posterior.sum(-1) < 1).all()
        assert pair.posterior.shape == (1, len(pair.target), len(pair.source))
    trained.model.null_word.probability = 1 - 1e-9
    assert [str(pair.links) for pair in aligned_pairs(trained, text, num_samples=1)] == [""] * len(text)


@pytest.mark.parametrize("scheme", ["categorical_enum", "marginal", "sparse_enum", "dirichlet"])
def test_the_posterior_gap_is_what_the_bound_leaves_of_the_evidence(translation_run, scheme):
    config = replace(read_config(translation_run, device="cpu"), guide=scheme, hidden=8)
    trained = build(config, Vocabulary.load(translation_run / "vocabulary.json"))
    for parameter in trained.module.parameters():  # as far from the prior as from the posterior
        parameter.data.normal_(std=0.5)
    text = load_text(config, "test")
    summary = alignment_summary(trained, text)
    if scheme in ("marginal", "dirichlet"):
        assert "test_posterior_gap" not in summary
        return
    pairs = list(batches(trained, text))
    loss = sum(trained.module.objective(*model_arguments(batch)).item() for batch in pairs)
    words = sum(int(batch.target_mask.sum()) for batch in pairs)
    gap = loss / words - math.log(perplexity(trained, text))
    assert gap > 0.05
    assert summary["test_posterior_gap"] == pytest.approx(gap, rel=1e-3)


@pytest.mark.parametrize("jumps", [False, True])
def test_the_exact_posterior_is_that_of_a_network_without_inference_network(translation_run, jumps):
    options = {"jumps": True, "input_feed": "none", "words_from": "context"} if jumps else {}
    config = replace(read_config(translation_run, device="cpu"), **options)
    vocabulary = Vocabulary.load(translation_run / "vocabulary.json")
    inferring, summing = (build(replace(config, guide=guide), vocabulary) for guide in ("categorical_enum", "marginal"))
    summing.model.load_state_dict(inferring.model.state_dict())
    batch = next(batches(inferring, load_text(config, "test")))
    found, expected = (align_batch(trained, batch, num_samples=1, exact=True) for trained in (inferring, summing))
    torch.testing.assert_close(found.exact, expected.posterior[0])
    assert (found.exact - found.posterior[0]).abs().max() > 0.01
    assert expected.exact is None
    assert align_batch(inferring, batch, num_samples=1).exact is None  # only where it is asked for
    assert has_posterior_gap(inferring) != jumps
    assert not has_posterior_gap(summing)


def test_links_by_the_exact_posterior(align, text, translation_run, reverse_run, tmp_path, capsys):
    trained = load_trained(translation_run, device="cpu")
    pairs = aligned_pairs(trained, load_text(trained.config, "test"), num_samples=1, exact=True)
    assert align("--weights", "exact", "--table") == 0
    write_pharaoh(tmp_path / "expected.txt", [hard_alignment(pair.exact) for pair in pairs])
    assert (tmp_path / "out" / "alignments.txt").read_text() == (tmp_path / "expected.txt").read_text()
    rows = [line.split("\t") for line in (tmp_path / "out" / "probabilities.tsv").read_text().splitlines()[1:]]
    for row in (dict(zip(COLUMNS, row, strict=True)) for row in rows):
        exact = pairs[int(row["line"]) - 1].exact[int(row["target"]), int(row["source"])].item()
        assert float(row["posterior"]) == pytest.approx(exact, abs=1e-4)
    # not the inference network's
    assert max((pair.exact - pair.posterior[0]).abs().max() for pair in pairs) > 0.01
    sides = {"source": text / "test.en", "target": text / "test.de"}
    assert align("--weights", "exact", run=reverse_run, **sides, out=tmp_path / "soft") == 1
    assert "was trained with guide soft, whose weights cannot be summed out" in capsys.readouterr().err
    assert not (tmp_path / "soft").exists()


@pytest.mark.parametrize("from_prior", [False, True])
def test_an_inference_network_may_start_at_the_prior(translation_run, from_prior):
    options = {"guide": "categorical_enum", "posterior_from_prior": from_prior}
    config = replace(read_config(translation_run, device="cpu"), **options)
    trained = build(config, Vocabulary.load(translation_run / "vocabulary.json"))
    batch = next(batches(trained, load_text(config, "test")))
    found = align_batch(trained, batch, num_samples=1)
    difference = (found.prior - found.posterior[0])[batch.target_mask].abs().max()
    assert (difference < 1e-6) == from_prior
