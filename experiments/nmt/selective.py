"""Selective translation: how good are the most certain translations, and is text from elsewhere less certain?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.datasets.names import ParallelName
from experiments.datasets.text.batches import BucketSampler, EncodedText
from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.results import write_numbers
from experiments.nmt.config import SelectiveConfig, SelectiveOptions, TranslationConfig
from experiments.nmt.data import check_coverage, load_text, tokenised
from experiments.nmt.evaluation import Translated, bleu, chrf, translate
from experiments.nmt.files import evaluated_text
from experiments.nmt.model import Trained, load_trained
from experiments.report.columns import Row
from experiments.report.tables import as_table
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import model_arguments
from experiments.sequence.own_text import refuse_to_replace
from experiments.sequence.uncertainty import word_uncertainty
from models.decoding import target_log_probs
from pyro_attention.posterior.predictive import seeded

__all__ = [
    "MEASURES", "Measured", "definition", "foreign_texts", "measured", "selective_run", "translation_uncertainty",
]  # fmt: skip

_MEAN = "mean over the word pieces of the translation"
MEASURES = {
    "log probability": f"minus the log probability of a word piece, the attention integrated out; {_MEAN}",
    "entropy": f"entropy of the next word piece, the attention integrated out; {_MEAN}",
    "attention": f"mutual information of the next word piece and the attention: the doubt where to look; {_MEAN}",
    "length": "number of word pieces of the source sentence, for comparison",
}
"""What is measured of a translation, larger where it is more doubtful."""

_SCORES = {"BLEU": bleu, "chrF": chrf}


@dataclass(frozen=True)
class Measured:
    """What the uncertainty of translations is worth.

    Attributes:
        numbers: Every number by its name.
        kept: Table of scores of the most certain translations.
        ranks: Table of rank correlations.
        elsewhere: Table of areas, a row for each text from elsewhere.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    kept: list[Row] = field(default_factory=list)
    ranks: list[Row] = field(default_factory=list)
    elsewhere: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class _Scored:
    """A text, its translations, and how uncertain they are: MEASURES, ``[sentences]`` each."""

    text: ParallelText
    translations: list[Translated]
    uncertainty: dict[str, Tensor]


def selective_run(config: SelectiveConfig) -> dict[str, float]:
    """Print BLEU and chrF of the most certain translations and, of other texts, how well uncertainty tells them."""
    check_coverage(config.coverage, of="translations")
    if config.out is not None:
        refuse_to_replace([config.out], overwrite=config.overwrite)
    trained = load_trained(config.run, device=config.device)
    text = evaluated_text(config, trained)
    elsewhere = foreign_texts(trained.config, config.out_of_domain)
    found = measured(trained, text, elsewhere, config, progress=True)
    print("The most certain translations, by several measures:")
    print(as_table(found.kept))
    print("\nRank correlation (Spearman's) of the certainty of a translation with its chrF:")
    print(as_table(found.ranks))
    if found.elsewhere:
        print("\nText from elsewhere, told by its larger uncertainty (area under the ROC curve; .5 is chance):")
        print(as_table(found.elsewhere))
    if config.out is not None:
        with user_errors(OSError):
            write_numbers(config.out, found.numbers, {name: definition(name) for name in found.numbers})
        print(config.out)
    return found.numbers


def definition(name: str) -> str:
    """What a number is."""
    what, _, measure = name.rpartition(" by ")
    if what == "rank correlation":
        return f"Spearman's rank correlation of chrF of a translation with minus its uncertainty: {MEASURES[measure]}"
    if what.startswith("auroc of "):
        return (
            f"area under the ROC curve of telling translations of {what.removeprefix('auroc of ')} from those of the "
            f"test text by the larger {MEASURES[measure]}"
        )
    score, _, share = what.partition(" at ")
    return f"{score} by sacrebleu of the {share} most certain translations, the least {MEASURES[measure]}"


def measured(
    trained: Trained,
    text: ParallelText,
    elsewhere: Mapping[str, ParallelText],
    config: SelectiveOptions,
    *,
    progress: bool = False,
) -> Measured:
    """What the uncertainty of translations of a text is worth, and whether it tells texts from elsewhere."""
    with user_errors(ValueError):
        own = _scored(trained, text, config, progress=progress)
        foreign = {name: _scored(trained, one, config, progress=progress) for name, one in elsewhere.items()}
    found = Measured()
    _add_kept(found, trained, own, (*config.coverage, 1.0))
    _add_ranks(found, trained, own)
    for name, one in foreign.items():
        _add_areas(found, name, own, one)
    return found


@torch.no_grad()
def translation_uncertainty(
    trained: Trained, text: ParallelText, translations: Sequence[Translated]
) -> dict[str, Tensor]:
    """MEASURES of every translation, ``[sentences]``, the end of the sentence being a word piece too.

    ``attention`` is not among them where the attention is deterministic and there is no such doubt.
    """
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(one.tokens, dtype=torch.int64) for one in translations]
    found = torch.zeros(len(MEASURES) - 1, len(text), dtype=torch.float64)
    inference = trained.inference(samples=None)
    for rows in BucketSampler(data.lengths, sentences=sequence.BATCH, shuffle=False):
        batch = data[rows].to(trained.device)
        doubt = word_uncertainty(trained, batch, num_samples=trained.config.num_samples)
        with seeded(trained.config.seed):
            log_probs = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
        parts = torch.stack([-log_probs, doubt.total, doubt.attention]).where(batch.target_mask, 0).double()
        found[:, rows] = (parts.sum(-1) / batch.target_mask.sum(-1)).cpu()
    by_name = dict(zip(MEASURES, found, strict=False))
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
        if tokenised(foreign):  # what divides the network's own text has divided this one already
            foreign = replace(foreign, tokenize=None)
        with user_errors(ValueError, OSError):
            texts[name] = load_text(foreign, "test")
    return texts


def _scored(trained: Trained, text: ParallelText, config: SelectiveOptions, *, progress: bool) -> _Scored:
    """Translations of the first pairs of a text, and how uncertain they are."""
    if config.pairs is not None:
        text = text.first(config.pairs)
    translations = translate(trained, text, config, progress=progress)
    return _Scored(text, translations, translation_uncertainty(trained, text, translations))


def _add_kept(found: Measured, trained: Trained, own: _Scored, coverage: Sequence[float]) -> None:
    """Scores of the most certain translations by every measure."""
    for share in dict.fromkeys(sorted(coverage)):
        # 0.07 * 100 is 7.000000000000001, and means 7
        count = math.ceil(share * len(own.text) * (1 - 1e-12))
        row: Row = {"kept": f"{share:.0%}", "sentences": count}
        for measure, values in own.uncertainty.items():
            places = values.argsort(stable=True)[:count].tolist()
            chosen, some = [own.translations[place] for place in places], own.text.chosen(places)
            for score, function in _SCORES.items():
                scored = function(chosen, some, trained.config)
                row[f"{score} by {measure}"] = f"{scored.score:.1f}"
                found.numbers[f"{score} at {share:.0%} by {measure}"] = scored.score
        found.kept.append(row)


def _add_ranks(found: Measured, trained: Trained, own: _Scored) -> None:
    """Rank correlations of certainty with the score of a sentence; none where all sentences are alike."""
    places = range(len(own.text))
    scores = [chrf([own.translations[place]], own.text.chosen([place]), trained.config).score for place in places]
    row: Row = {}
    for measure, values in own.uncertainty.items():
        if len(set(scores)) > 1 and len(values.unique()) > 1:
            correlation = float(-spearmanr(values.numpy(), scores).statistic)
            row[f"by {measure}"] = f"{correlation:.3f}"
            found.numbers[f"rank correlation by {measure}"] = correlation
    found.ranks.append(row)


def _add_areas(found: Measured, name: str, own: _Scored, foreign: _Scored) -> None:
    """Areas under the ROC curve of telling the sentences of another text by their larger uncertainty."""
    row: Row = {"text": name, "sentences": len(foreign.text)}
    truth = torch.cat([torch.zeros(len(own.text)), torch.ones(len(foreign.text))])
    for measure, values in own.uncertainty.items():
        area = float(roc_auc_score(truth.numpy(), torch.cat([values, foreign.uncertainty[measure]]).numpy()))
        row[f"by {measure}"] = f"{area:.3f}"
        found.numbers[f"auroc of {name} by {measure}"] = area
    found.elsewhere.append(row)
