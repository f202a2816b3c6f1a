"""Evaluation of translation networks: perplexity, BLEU, chrF, alignments, and the value of their uncertainty."""

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
from experiments.nmt.align import alignment_metrics
from experiments.nmt.config import SearchOptions, TranslationConfig
from experiments.nmt.texts import batches, tokenized
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import AnyTrained, predictive_perplexity

_EXACT = SearchOptions(sum_over="all")


class Translated(NamedTuple):
    """Translation of a sentence.

    Attributes:
        text: The words; punctuation is joined to them if the text of the network was divided into words.
        cut: Whether the translation was cut at the largest length.
        tokens: Ids of the word pieces, without the end of the sentence.
    """

    text: str
    cut: bool
    tokens: tuple[int, ...] = ()


class Score(NamedTuple):
    """Score of a set of translations.

    Attributes:
        score: Value from 0 to 100.
        signature: sacrebleu's description of the computation; "tok:none" is BLEU on words between blanks.
    """

    score: float
    signature: str


def perplexity(trained: AnyTrained, text: ParallelText, *, k_max: int | None = None) -> float:
    """Return the perplexity per word piece of the target sentences of a text."""
    return predictive_perplexity(trained, batches(trained, text), k_max=k_max)


def translate(
    trained: AnyTrained, text: ParallelText, options: SearchOptions = _EXACT, *, progress: bool = False
) -> list[Translated]:
    """Translate the source sentences by beam search, in the order of the text."""
    config, translations = trained.config, dict[int, Translated]()
    given = {"beam": options.beam, "length_penalty": options.length_penalty}
    search_options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    terms = None if options.sum_over == "all" else options.sum_over
    inference = trained.inference(k_max=options.k_max, terms=terms)
    search_options |= {"inference": inference, "seed": config.seed, "max_length": options.max_length}
    bar = tqdm(total=len(text), desc="translating", unit="sentence", disable=not progress)
    with bar, user_errors(ValueError):
        for batch in batches(trained, text):
            best = sequence.search(trained, batch.source, batch.source_mask, **search_options)
            for index, hypothesis in zip(batch.indices.tolist(), best, strict=True):
                joined = join_words(trained.vocabulary.decode(hypothesis.tokens), config.words)
                translations[index] = Translated(joined, not hypothesis.finished, hypothesis.words)
            bar.update(len(batch))
    return [translations[index] for index in range(len(text))]


def bleu(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """Compute BLEU by sacrebleu, in lower case if the text is; data sets that are tokenized get tokenized BLEU."""
    divided = tokenized(config)
    metric = sacrebleu.BLEU(lowercase=config.lowercase, tokenize="none" if divided else "13a", force=divided)
    return _corpus_score(metric, translations, text, config)


def chrf(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """Compute chrF, the F-score of character n-grams, by sacrebleu, in lower case if the text is."""
    return _corpus_score(sacrebleu.CHRF(lowercase=config.lowercase), translations, text, config)


def _corpus_score(
    metric: Any, translations: Sequence[Translated], text: ParallelText, config: TranslationConfig
) -> Score:
    references = [join_words(sentence, config.words) for sentence in text.target]
    score = metric.corpus_score([translation.text for translation in translations], [references]).score
    return Score(score, str(metric.get_signature()))


def evaluate(trained: AnyTrained, text: ParallelText) -> tuple[dict[str, float], list[str]]:
    """Return the metrics of a trained network on the test text, and its translations."""
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
    metrics |= alignment_metrics(trained, text)
    metrics["network_parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if model.normalizer is not None:
        metrics["temporal_share"] = model.normalizer.mixing_weight
    return metrics, [translation.text for translation in translations]


# value of the uncertainty

_MEAN = "mean over the word pieces of the translation"
MEASURES = {
    "log probability": f"minus the log probability of a word piece, the attention integrated out; {_MEAN}",
    "entropy": f"entropy of the next word piece, the attention integrated out; {_MEAN}",
    "attention": f"mutual information of the next word piece and the attention; {_MEAN}",
    "length": "number of word pieces of the source sentence, for comparison",
}
"""Measures of the uncertainty of a translation by name; larger values are less certain."""

Measures = Mapping[str, Tensor]


def uncertainty_metrics(
    trained: AnyTrained, text: ParallelText, out_of_domain: Mapping[str, ParallelText], pairs: int
) -> dict[str, float]:
    """Measure whether uncertain translations are worse, and whether uncertainty detects text of another domain.

    The search sums over the 5 most probable alignments of a word, if the scheme sums alignments out.

    Args:
        trained: The network.
        text: Test text.
        out_of_domain: Test texts of other domains by name.
        pairs: Number of sentence pairs of each text, the first ones.

    Returns:
        Scores of the most certain translations, rank correlations of certainty and chrF, and areas under the ROC curve.
    """
    text = text.first(pairs)
    translations = translate(trained, text, SearchOptions())
    uncertainty = translation_uncertainty(trained, text, translations)
    metrics = selective_scores(translations, text, uncertainty, trained.config)
    for name, foreign in out_of_domain.items():
        foreign = foreign.first(pairs)
        foreign_uncertainty = translation_uncertainty(trained, foreign, translate(trained, foreign, SearchOptions()))
        is_foreign = [False] * len(text) + [True] * len(foreign)
        for measure, values in uncertainty.items():
            joined = torch.cat([values, foreign_uncertainty[measure]]).numpy()
            metrics[f"auroc of {name} by {measure}"] = float(roc_auc_score(is_foreign, joined))
    return metrics


def selective_scores(
    translations: Sequence[Translated], text: ParallelText, uncertainty: Measures, config: TranslationConfig
) -> dict[str, float]:
    """Score shares of the most certain translations, and correlate certainty with chrF, by each measure."""

    def scores(indices: Sequence[int]) -> dict[str, float]:
        chosen = [translations[index] for index in indices], text.chosen(indices)
        return {name: score(*chosen, config).score for name, score in (("BLEU", bleu), ("chrF", chrf))}

    metrics = dict[str, float]()
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        count = math.ceil(share * len(text))
        for measure, values in uncertainty.items():
            for name, score in scores(values.argsort(stable=True)[:count].tolist()).items():
                metrics[f"{name} at {share:.0%} by {measure}"] = score
    sentence_chrf = [scores([index])["chrF"] for index in range(len(text))]
    for measure, values in uncertainty.items():
        if len(set(sentence_chrf)) > 1 and len(values.unique()) > 1:  # else the correlation is undefined
            metrics[f"rank correlation by {measure}"] = float(-spearmanr(values.numpy(), sentence_chrf).statistic)
    return metrics


def translation_uncertainty(
    trained: AnyTrained, text: ParallelText, translations: Sequence[Translated]
) -> dict[str, Tensor]:
    """Compute the :data:`MEASURES` of every translation, ``[sentences]`` each; the end of a sentence is a word piece.

    Deterministic attention has no measure ``attention``.
    """
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(translation.tokens, dtype=torch.int64) for translation in translations]
    inference = trained.inference(samples=None)
    ordered = in_order(data, sentences=sequence.BATCH, device=trained.device)
    by_name = dict(zip(MEASURES, sequence.sentence_doubts(trained, ordered, inference), strict=False))
    if not (trained.is_random or inference.sums_out(trained.model)):
        del by_name["attention"]
    return by_name | {"length": torch.tensor([len(ids) for ids in data.sources], dtype=torch.float64)}
