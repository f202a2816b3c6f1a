"""Networks of both directions as an aligner: their evidence, their agreement, and the text that is drawn with links."""

import pytest
import torch

from experiments.datasets.text.batches import BucketSampler, train_tokenizer
from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.aligners import calibration_error, link_all, linked_words, pyro_align
from experiments.nmt.classics import BothTexts, agreement, drawn_text, log_evidence, network_align
from experiments.nmt.config import ALIGNER, TranslationConfig
from experiments.nmt.model import build, word_pairs
from experiments.sequence.model import model_arguments
from pyro_attention.ops.token_log_prob import token_log_prob

SOURCE = ["das haus", "das kleine haus ist klein", "ein buch"]
TARGET = ["the house", "the small house is small", "a book indeed"]
SMALL = {**ALIGNER, "hidden": 8, "embedding": 8, "vocabulary": 300, "device": "cpu", "guide": "marginal"}


@pytest.fixture
def both():
    """A network, and a batch of both directions."""
    vocabulary = train_tokenizer([*SOURCE, *TARGET], size=300)
    trained = build(TranslationConfig(**SMALL | {"dropout": 0.0}), vocabulary)
    data = BothTexts(ParallelText(SOURCE, TARGET, "text", ("de", "en")), trained)
    return trained, data[next(iter(BucketSampler(data.lengths, sentences=3)))]


def test_the_evidence_and_its_gradient_are_those_of_the_enumerated_site(both, monkeypatch):
    """Which computes the output layer once, for each distinct source piece, NULL and the padding."""
    trained, (batch, _) = both
    rows = []
    logits = type(trained.model.likelihood(torch.zeros(1, 8), torch.zeros(1, 8))).logits
    counted = property(lambda one: rows.append(one.features.shape[:-1].numel()) or logits.fget(one))
    monkeypatch.setattr("pyro_attention.likelihoods.TokenLikelihood.logits", counted)
    monkeypatch.setattr("pyro_attention.likelihoods.token_log_prob", lambda *_, **__: pytest.fail("another pass"))
    parameters = list(trained.model.parameters())
    loss = trained.module.objective(*model_arguments(batch))
    assert rows == [len(set(batch.source[batch.source_mask].tolist())) + 2]
    evidence, _ = log_evidence(trained.model, batch)
    torch.testing.assert_close(loss, -evidence)
    expected, found = (
        torch.autograd.grad(one, parameters, allow_unused=True, materialize_grads=True) for one in (-evidence, loss)
    )
    torch.testing.assert_close(found, expected)
    monkeypatch.setattr("pyro_attention.likelihoods.token_log_prob", token_log_prob)
    trained.model.pieces = lambda *_: None  # as with an encoder that knows the neighbors: a row for each place
    torch.testing.assert_close(trained.module.objective(*model_arguments(batch)), loss)


def test_agreement_multiplies_links_and_leaves_the_rest(both):
    _, batch = both
    forward, backward = (
        torch.rand_like(torch.zeros(3, one.source.size(1) + 1, one.target_out.size(1))) for one in batch
    )
    found = agreement(forward, backward, batch)
    for row in range(3):
        n, m = (int(one.source_mask[row].sum()) for one in batch)
        own, other = forward[row, 1 : n + 1, :m], backward[row, 1 : m + 1, :n].mT
        links = found[0][row, 1 : n + 1, :m]
        torch.testing.assert_close(links, own * other * (own.sum(0) / (own * other).sum(0)))
        links = found[1][row, 1 : m + 1, :n].mT
        torch.testing.assert_close(links, own * other * (other.sum(1) / (own * other).sum(1))[:, None])
        for new, old, size in ((found[0], forward, m), (found[1], backward, n)):
            assert torch.equal(new[row, 0], old[row, 0])  # NULL
            assert torch.equal(new[row, :, size], old[row, :, size])  # the end of the sentence


@pytest.mark.parametrize("agree", [False, True])
def test_networks_align(agree, monkeypatch):
    """Posteriors of both directions between the words, those of each word at most 1."""
    monkeypatch.setattr(
        "experiments.nmt.classics._CONFIG", TranslationConfig(**SMALL | {"max_epochs": 1, "progress": False})
    )
    text = list(zip(*([line.split() for line in side] for side in (SOURCE, TARGET)), strict=True)) * 4
    aligned = network_align(text, text[:3], agree=agree)
    for (source, target), one, other in zip(text, aligned.forward, aligned.backward, strict=False):
        assert one.posterior.shape == (1, len(target), len(source))
        assert other.posterior.shape == (1, len(source), len(target))
        assert one.posterior.sum(-1).max() <= 1 + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("drawn-order", 0.02), ("drawn-jumps", 0.035)])
def test_probabilities_of_links_that_the_text_tells_are_right(name, most):
    train, test = drawn_text(name, 20000)
    own = word_pairs(test)
    aligned = pyro_align([*word_pairs(train), *own], own)
    links = link_all(aligned.weights("posterior"), "geometric, mbr", test.gold).links
    assert calibration_error(linked_words(aligned, links, test.gold), "mean") < most
