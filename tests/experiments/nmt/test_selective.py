"""The most certain translations, and text from elsewhere."""

import math

import pytest
import torch

from experiments.datasets.text.batches import EncodedText
from experiments.nmt import evaluation
from experiments.nmt.config import SearchOptions
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import (
    MEASURES,
    Translated,
    bleu,
    definition,
    foreign_texts,
    measured,
    translate,
    translation_uncertainty,
)
from experiments.nmt.model import load_trained
from experiments.sequence.model import model_arguments
from models.decoding.next_word import next_word_log_probs


@pytest.fixture(scope="module")
def trained(translation_run):
    return load_trained(translation_run, device="cpu")


def test_uncertainty_of_a_translation_by_its_words(trained):
    text = load_text(trained.config, "test")
    translations = translate(trained, text)
    found = translation_uncertainty(trained, text, translations)
    assert list(found) == [*MEASURES]
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(one.tokens, dtype=torch.int64) for one in translations]
    for place in range(len(text)):
        batch, parts = data[[place]], []
        source, mask, target_in, target_out, _ = model_arguments(batch)
        state = trained.model.start(trained.model.encode(source, mask), mask)
        for step, wanted in zip(trained.model.steps(state, target_in), target_out[0].tolist(), strict=True):
            log_probs = next_word_log_probs(trained.model, step)[0].double()
            parts.append((-log_probs[wanted], torch.special.entr(log_probs.exp()).sum()))
        expected = torch.tensor(parts).mean(0).tolist()
        measured = [found["log probability"][place].item(), found["entropy"][place].item()]
        assert measured == pytest.approx(expected, rel=1e-4)
    assert found["length"].tolist() == [len(ids) for ids in EncodedText(text, trained.vocabulary).sources]
    assert (found["attention"] >= 0).all()
    assert (found["attention"] <= found["entropy"] + 1e-6).all()


def test_scores_at_coverage_and_text_from_elsewhere(trained):
    text = load_text(trained.config, "test").first(4)
    numbers = measured(trained, text, foreign_texts(trained.config, ("toy",)), 4)
    translations = translate(trained, text, SearchOptions())
    certain = translation_uncertainty(trained, text, translations)["entropy"].argsort()[:2].tolist()
    half = bleu([translations[place] for place in certain], text.chosen(certain), trained.config).score
    assert numbers["BLEU at 50% by entropy"] == pytest.approx(half)
    whole = bleu(translations, text, trained.config).score
    assert [numbers[f"BLEU at 100% by {measure}"] for measure in MEASURES] == pytest.approx([whole] * 4)
    assert 0 <= numbers["auroc of toy by entropy"] <= 1
    assert all(map(math.isfinite, numbers.values()))
    assert all(map(definition, numbers))


def test_rank_correlation_is_1_where_certainty_and_score_agree(trained, monkeypatch):
    text = load_text(trained.config, "test").first(3)
    right = [Translated(sentence, cut=False, tokens=(5,)) for sentence in text.target]
    worse = right[1]._replace(text=right[1].text[: len(right[1].text) // 2])
    monkeypatch.setattr(evaluation, "translate", lambda *args, **options: [right[0], worse, worse._replace(text="#")])
    doubts = {"entropy": torch.tensor([0.0, 1.0, 5.0]), "length": torch.tensor([3.0, 2.0, 1.0])}
    monkeypatch.setattr(evaluation, "translation_uncertainty", lambda *_: doubts | {"attention": torch.zeros(3)})
    numbers = measured(trained, text, {}, 3)
    assert numbers["rank correlation by entropy"] == pytest.approx(1)
    assert numbers["rank correlation by length"] == pytest.approx(-1)
    assert "rank correlation by attention" not in numbers  # it is the same everywhere
    assert numbers["chrF at 25% by entropy"] == pytest.approx(100)
