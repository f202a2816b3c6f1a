"""How well a translation network predicts, translates and aligns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sacrebleu
from tqdm import tqdm

from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.word_rules import join_words
from experiments.nmt.alignments import alignment_summary
from experiments.nmt.config import SearchOptions, TranslationConfig
from experiments.nmt.data import tokenised
from experiments.nmt.model import Trained, batches
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import perplexity as sequence_perplexity

__all__ = [
    "DEFINITIONS",
    "Score",
    "Translated",
    "bleu",
    "chrf",
    "evaluate",
    "perplexity",
    "translate",
]

_EXACT = SearchOptions(sum_over="all")

DEFINITIONS = {
    **sequence.DEFINITIONS,
    "test_ppl": "perplexity per word piece of the test text: alignments summed out exactly; for Bayesian attention the "
    "predictive one, the mean probability over posterior samples (num_samples of the configuration); for soft plain",
    "test_ppl_k_max": "the same with the k_max largest weights of each word, renormalised, input feed included",
    "test_bleu": f"BLEU of beam search on the test text, word pieces joined, by sacrebleu {sacrebleu.__version__}: "
    "case:lc where the text is lower-cased, tok:13a, or tok:none for data sets that come tokenised",
    "test_bleu_k_max": "the same with the k_max largest weights of each word",
    "test_chrf": "F-score of runs of characters (chrF) by sacrebleu of the translations that test_bleu judges",
    "test_prior_aer": "alignment error rate of the prior alignment, which predicts a word, between words; none of "
    "Bayesian attention, whose prior sees the source alone",
    "test_posterior_aer": "alignment error rate of the posterior: of the inference network where there is one, else "
    "exact, p(z | x, y_<=j)",
    "temporal_share": "mixing weight of attention that is normalised over the words before, as trained",
    "val_ppl": "perplexity per word piece of the validation text at the best epoch, Bayesian attention at its mean",
    "network_parameters": "number of parameters that predict",
    "train_pairs": "number of training pairs",
    "train_left_out": "number of pairs that were left out in reading the training text: too long, repeated, held out, "
    "with gaps in place of words, or bad",
}


def perplexity(trained: Trained, text: ParallelText, *, k_max: int | None = None) -> float:
    """Perplexity per word piece; see DEFINITIONS."""
    return sequence_perplexity(trained, batches(trained, text), k_max=k_max)


@dataclass(frozen=True)
class Translated:
    """A translation, punctuation joined to words where the network's text was divided."""

    text: str
    cut: bool  # it had not ended at the largest length
    tokens: tuple[int, ...] = ()  # its word pieces, without the end of the sentence


def translate(
    trained: Trained, text: ParallelText, options: SearchOptions = _EXACT, *, progress: bool = False
) -> list[Translated]:
    """Translations of the source sentences by beam search, in the order of the text."""
    config, found = trained.config, dict[int, Translated]()
    given = {name: getattr(options, name) for name in ("beam", "no_repeat") if getattr(options, name) is not None}
    terms = None if options.sum_over == "all" else options.sum_over
    inference = trained.inference(samples=options.samples, k_max=options.k_max, terms=terms)
    given |= {"inference": inference, "seed": config.seed}
    with tqdm(total=len(text), desc="translating", unit="sentence", disable=not progress) as bar:
        for batch in batches(trained, text):
            best = sequence.search(trained, batch.source, batch.source_mask, max_length=options.max_length, **given)
            for index, one in zip(batch.indices.tolist(), best, strict=True):
                joined = join_words(trained.vocabulary.decode(one.tokens), config.words)
                found[index] = Translated(joined, cut=not one.finished, tokens=one.words)
            bar.update(len(batch))
    return [found[index] for index in range(len(text))]


@dataclass(frozen=True)
class Score:
    """A score of translations, from 0 to 100."""

    score: float
    signature: str  # how it was computed; "tok:none" is tokenised BLEU, on words that blanks separate


def bleu(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """BLEU by sacrebleu, lower-cased where the text is; tokenised BLEU for data sets that come tokenised."""
    divided = tokenised(config)
    metric = sacrebleu.BLEU(lowercase=config.lowercase, tokenize="none" if divided else "13a", force=divided)
    return _score(metric, translations, text, config)


def chrf(translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    """F-score of runs of characters by sacrebleu, lower-cased where the text is."""
    return _score(sacrebleu.CHRF(lowercase=config.lowercase), translations, text, config)


def _score(metric: Any, translations: Sequence[Translated], text: ParallelText, config: TranslationConfig) -> Score:
    references = [join_words(sentence, config.words) for sentence in text.target]
    score = metric.corpus_score([translation.text for translation in translations], [references]).score
    return Score(score, str(metric.get_signature()))


def evaluate(trained: Trained, text: ParallelText) -> tuple[dict[str, float], list[str]]:
    """Metrics of a trained network on the test text, and its translations."""
    translations = translate(trained, text)
    metrics = {
        "test_ppl": perplexity(trained, text),
        "test_bleu": bleu(translations, text, trained.config).score,
        "test_chrf": chrf(translations, text, trained.config).score,
    }
    if (k_max := trained.config.k_max) is not None:
        metrics["test_ppl_k_max"] = perplexity(trained, text, k_max=k_max)
        found = translate(trained, text, replace(_EXACT, k_max=k_max))
        metrics["test_bleu_k_max"] = bleu(found, text, trained.config).score
    metrics |= {
        **alignment_summary(trained, text),
        "network_parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
    }
    if trained.model.normalizer is not None:
        metrics["temporal_share"] = trained.model.normalizer.mixing_weight
    return metrics, [translation.text for translation in translations]
