"""How well a translation network predicts, translates and aligns, and what its uncertainty is worth; the commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm import tqdm

from experiments.datasets.names import ParallelName
from experiments.datasets.text.batches import EncodedText, in_order
from experiments.datasets.text.parallel_text import ParallelText, Rules
from experiments.datasets.text.word_rules import join_words
from experiments.files import UserError, user_errors
from experiments.nmt.align import alignment_summary
from experiments.nmt.config import EvaluateConfig, SearchOptions, TranslateConfig, TranslationConfig
from experiments.nmt.model import Trained, batches, load_text, load_trained, read_pairs, tokenized
from experiments.report.report import metrics_table
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import perplexity as sequence_perplexity
from experiments.sequence.own_text import read_source

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


def perplexity(trained: Trained, text: ParallelText, *, k_max: int | None = None) -> float:
    """Perplexity per word piece."""
    return sequence_perplexity(trained, batches(trained, text), k_max=k_max)


def translate(
    trained: Trained, text: ParallelText, options: SearchOptions = _EXACT, *, progress: bool = False
) -> list[Translated]:
    """Translations of the source sentences by beam search, in the order of the text."""
    config, found = trained.config, dict[int, Translated]()
    given: dict[str, Any] = {} if options.beam is None else {"beam": options.beam}
    terms = None if options.sum_over == "all" else options.sum_over
    inference = trained.inference(k_max=options.k_max, terms=terms)
    given |= {"inference": inference, "seed": config.seed, "max_length": options.max_length}
    bar = tqdm(total=len(text), desc="translating", unit="sentence", disable=not progress)
    with bar, user_errors(ValueError):
        for batch in batches(trained, text):
            best = sequence.search(trained, batch.source, batch.source_mask, **given)
            for index, one in zip(batch.indices.tolist(), best, strict=True):
                joined = join_words(trained.vocabulary.decode(one.tokens), config.words)
                found[index] = Translated(joined, not one.finished, one.words)
            bar.update(len(batch))
    return [found[index] for index in range(len(text))]


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


def evaluate(trained: Trained, text: ParallelText) -> tuple[dict[str, float], list[str]]:
    """Metrics of a trained network on the test text, and its translations."""
    config, model, translations = trained.config, trained.model, translate(trained, text)
    metrics = {
        "test_ppl": perplexity(trained, text),
        "test_bleu": bleu(translations, text, config).score,
        "test_chrf": chrf(translations, text, config).score,
    }
    if config.k_max is not None:
        metrics["test_ppl_k_max"] = perplexity(trained, text, k_max=config.k_max)
        found = translate(trained, text, replace(_EXACT, k_max=config.k_max))
        metrics["test_bleu_k_max"] = bleu(found, text, config).score
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
    trained: Trained, text: ParallelText, elsewhere: Mapping[str, ParallelText], pairs: int
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
            found = torch.cat([values, doubts[measure]]).numpy()
            numbers[f"auroc of {name} by {measure}"] = float(roc_auc_score(truth, found))
    return numbers


def translation_uncertainty(
    trained: Trained, text: ParallelText, translations: Sequence[Translated]
) -> dict[str, Tensor]:
    """MEASURES of every translation, ``[sentences]``, the end of the sentence being a word piece too.

    ``attention`` is not among them where the attention is deterministic and there is no such doubt.
    """
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(one.tokens, dtype=torch.int64) for one in translations]
    inference = trained.inference(samples=None)
    ordered = in_order(data, sentences=sequence.BATCH, device=trained.device)
    by_name = dict(zip(MEASURES, sequence.sentence_doubts(trained, ordered, inference), strict=False))
    if not (trained.is_random or inference.sums_out(trained.model)):
        del by_name["attention"]
    return by_name | {"length": torch.tensor([len(ids) for ids in data.sources], dtype=torch.float64)}


def foreign_texts(config: TranslationConfig, names: Sequence[ParallelName]) -> dict[str, ParallelText]:
    """Test texts of data sets that a network was not trained on, read as its own was.

    Raises:
        UserError: One is that of the training, or cannot be had.
    """
    texts: dict[str, ParallelText] = {}
    for name in names:
        if name == config.dataset:
            raise UserError(f"--out-of-domain is {name}, expected other data sets than the one that is trained on")
        foreign = replace(config, dataset=name, text=None, test_pairs=None)
        if tokenized(foreign):  # what divides the network's own text has divided this one already
            foreign = replace(foreign, tokenize=None)
        with user_errors(ValueError, OSError):
            texts[name] = load_text(foreign, "test")
    return texts


# The commands


def translate_file(config: TranslateConfig) -> Path:
    """Write the translations, a line for each of the file, and print where they are; what was left out on stderr."""
    trained = load_trained(config.run, device=config.device)
    languages = trained.config.source, trained.config.target
    out = config.out or config.file.with_suffix(f".{languages[1]}")
    rules = Rules(trained.config.lowercase, config.max_words, words=trained.config.words)
    source = read_source(config.file, rules, out, config.overwrite)
    text = ParallelText(source.sentences, [""] * len(source.sentences), config.file.name, languages)
    found = translate(trained, text, config, progress=True)
    source.write([one.text for one in found], [one.cut for one in found])
    case = ", lower-cased as the text of the training" if trained.config.lowercase else ""
    print(f"{len(found)} sentences{case}: {out}")
    return out


def evaluated_text(config: EvaluateConfig, trained: Trained) -> ParallelText:
    """The sentence pairs of the two files, or of the test text; UserError where they cannot be had."""
    source, target = config.source_file, config.target_file
    if source is not None and target is not None:
        return read_pairs(source, target, trained.config, max_words=config.max_words, words=trained.config.words)
    if source is not None or target is not None:
        raise UserError("one of --source-file and --target-file is missing; expected both, or none for the test text")
    with user_errors(ValueError, OSError):
        return load_text(trained.config, "test")


def evaluate_run(config: EvaluateConfig) -> dict[str, float]:
    """Print perplexity, BLEU and chrF."""
    trained = load_trained(config.run, device=config.device)
    text = evaluated_text(config, trained)
    found = translate(trained, text, config, progress=True)
    scores = {"BLEU": bleu(found, text, trained.config), "chrF": chrf(found, text, trained.config)}
    metrics = {"perplexity": perplexity(trained, text, k_max=config.k_max)}
    metrics |= {name: score.score for name, score in scores.items()}
    print(metrics_table(metrics), *(f"{name}: {score.signature}" for name, score in scores.items()), sep="\n")
    if trained.inference().sums_out(trained.model) and config.sum_over != "all":
        print(f"The search sums over the {config.sum_over} most probable alignments of each word (--sum-over).")
    if cut := sum(translation.cut for translation in found):
        print(f"{cut} of {len(found)} translations were cut at {config.max_length} word pieces (--max-length)")
    return metrics
