"""How well a translation network predicts, translates and aligns, and what its uncertainty is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sacrebleu
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm import tqdm

from experiments.data.text.batches import EncodedText, in_order
from experiments.data.text.parallel_text import ParallelText
from experiments.data.text.word_rules import join_words
from experiments.files import user_errors
from experiments.nmt.align import alignment_summary
from experiments.nmt.config import SearchOptions, TranslationConfig
from experiments.nmt.texts import batches, tokenized
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import AnyTrained
from experiments.sequence.model import perplexity as sequence_perplexity

_EXACT = SearchOptions(sum_over="all")


class Translated(NamedTuple):
    """A translation, punctuation joined to words where the network's text was divided."""

    text: str
    cut: bool  # it had not ended at the largest length
    tokens: tuple[int, ...] = ()  # its word pieces, without the end of the sentence


class Score(NamedTuple):
    """A score of translations, from 0 to 100."""

    score: float
    signature: str  # how it was computed; "tok:none" is tokenized BLEU, on words that blanks separate


def perplexity(trained: AnyTrained, text: ParallelText, *, k_max: int | None = None) -> float:
    """Perplexity per word piece."""
    return sequence_perplexity(trained, batches(trained, text), k_max=k_max)


def translate(
    trained: AnyTrained, text: ParallelText, options: SearchOptions = _EXACT, *, progress: bool = False
) -> list[Translated]:
    """Translations of the source sentences by beam search, in the order of the text."""
    config, translations = trained.config, dict[int, Translated]()
    chosen = {"beam": options.beam, "length_penalty": options.length_penalty}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    terms = None if options.sum_over == "all" else options.sum_over
    inference = trained.inference(k_max=options.k_max, terms=terms)
    given |= {"inference": inference, "seed": config.seed, "max_length": options.max_length}
    bar = tqdm(total=len(text), desc="translating", unit="sentence", disable=not progress)
    with bar, user_errors(ValueError):
        for batch in batches(trained, text):
            best = sequence.search(trained, batch.source, batch.source_mask, **given)
            for index, hypothesis in zip(batch.indices.tolist(), best, strict=True):
                joined = join_words(trained.vocabulary.decode(hypothesis.tokens), config.words)
                translations[index] = Translated(joined, not hypothesis.finished, hypothesis.words)
            bar.update(len(batch))
    return [translations[index] for index in range(len(text))]


def bleu(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """BLEU by sacrebleu, lower-cased where the text is; tokenized BLEU for data sets that come tokenized."""
    divided = tokenized(config)
    metric = sacrebleu.BLEU(lowercase=config.lowercase, tokenize="none" if divided else "13a", force=divided)
    return _score(metric, translations, text, config)


def chrf(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """F-score of runs of characters by sacrebleu, lower-cased where the text is."""
    return _score(sacrebleu.CHRF(lowercase=config.lowercase), translations, text, config)


def _score(metric: Any, translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    references = [join_words(sentence, config.words) for sentence in text.target]
    score = metric.corpus_score([translation.text for translation in translations], [references]).score
    return Score(score, str(metric.get_signature()))


def evaluate(trained: AnyTrained, text: ParallelText) -> tuple[dict[str, float], list[str]]:
    """Metrics of a trained network on the test text, and its translations."""
    config, model, translations = trained.config, trained.model, translate(trained, text)
    metrics = {
        "test_ppl": perplexity(trained, text),
        "test_bleu": bleu(translations, text, config).score,
        "test_chrf": chrf(translations, text, config).score,
    }
    if config.k_max is not None:
        metrics["test_ppl_k_max"] = perplexity(trained, text, k_max=config.k_max)
        shortened = translate(trained, text, replace(_EXACT, k_max=config.k_max))
        metrics["test_bleu_k_max"] = bleu(shortened, text, config).score
    metrics |= alignment_summary(trained, text)
    metrics["network_parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if model.normalizer is not None:
        metrics["temporal_share"] = model.normalizer.mixing_weight
    return metrics, [translation.text for translation in translations]


# What uncertainty is worth

_MEAN = "mean over the word pieces of the translation"
MEASURES = {
    "log probability": f"minus the log probability of a word piece, the attention integrated out; {_MEAN}",
    "entropy": f"entropy of the next word piece, the attention integrated out; {_MEAN}",
    "attention": f"mutual information of the next word piece and the attention: the doubt where to look; {_MEAN}",
    "length": "number of word pieces of the source sentence, for comparison",
}
"""What is measured of a translation, larger where it is more doubtful."""

Measures = Mapping[str, Tensor]


def measured(
    trained: AnyTrained, text: ParallelText, elsewhere: Mapping[str, ParallelText], pairs: int
) -> dict[str, float]:
    """What the uncertainty of translations of a text's first pairs is worth, and whether it tells texts from elsewhere.

    The search sums over the 5 most probable alignments of a word where they are summed out.
    """

    def doubted(some: ParallelText) -> tuple[ParallelText, list[Translated], Measures]:
        some = some.first(pairs)
        translations = translate(trained, some, SearchOptions())
        return some, translations, translation_uncertainty(trained, some, translations)

    text, translations, uncertainty = doubted(text)

    def scores(places: Sequence[int]) -> dict[str, float]:
        chosen, some = [translations[place] for place in places], text.chosen(places)
        return {name: score(chosen, some, trained.config).score for name, score in (("BLEU", bleu), ("chrF", chrf))}

    numbers = dict[str, float]()
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        count = math.ceil(share * len(text))
        for measure, values in uncertainty.items():
            for name, score in scores(values.argsort(stable=True)[:count].tolist()).items():
                numbers[f"{name} at {share:.0%} by {measure}"] = score
    single = [scores([place])["chrF"] for place in range(len(text))]
    for measure, values in uncertainty.items():
        if len(set(single)) > 1 and len(values.unique()) > 1:  # there is none where all sentences are alike
            numbers[f"rank correlation by {measure}"] = float(-spearmanr(values.numpy(), single).statistic)
    for name, other in elsewhere.items():
        foreign, _, doubts = doubted(other)
        truth = [False] * len(text) + [True] * len(foreign)
        for measure, values in uncertainty.items():
            doubt = torch.cat([values, doubts[measure]]).numpy()
            numbers[f"auroc of {name} by {measure}"] = float(roc_auc_score(truth, doubt))
    return numbers


def translation_uncertainty(
    trained: AnyTrained, text: ParallelText, translations: Sequence[Translated]
) -> dict[str, Tensor]:
    """MEASURES of every translation, ``[sentences]``, the end of the sentence being a word piece too.

    ``attention`` is not among them where the attention is deterministic and there is no such doubt.
    """
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(translation.tokens, dtype=torch.int64) for translation in translations]
    inference = trained.inference(samples=None)
    ordered = in_order(data, sentences=sequence.BATCH, device=trained.device)
    by_name = dict(zip(MEASURES, sequence.sentence_doubts(trained, ordered, inference), strict=False))
    if not (trained.is_random or inference.sums_out(trained.model)):
        del by_name["attention"]
    return by_name | {"length": torch.tensor([len(ids) for ids in data.sources], dtype=torch.float64)}
