"""Selective translation: how good are the most certain translations, and is text from elsewhere less certain?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from experiments.nmt.data import load_text, tokenised
from experiments.nmt.evaluation import Translated, bleu, chrf, evaluated_text, translate
from experiments.nmt.model import Trained, load_trained
from experiments.report.tables import as_table
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import model_arguments
from experiments.sequence.own_text import refuse_to_replace
from experiments.sequence.uncertainty import word_uncertainty
from models.decoding import target_log_probs
from pyro_attention.posterior.predictive import seeded

_MEAN = "mean over the word pieces of the translation"
MEASURES = {
    "log probability": f"minus the log probability of a word piece, the attention integrated out; {_MEAN}",
    "entropy": f"entropy of the next word piece, the attention integrated out; {_MEAN}",
    "attention": f"mutual information of the next word piece and the attention: the doubt where to look; {_MEAN}",
    "length": "number of word pieces of the source sentence, for comparison",
}
"""What is measured of a translation, larger where it is more doubtful."""

Measures = Mapping[str, Tensor]


def selective_run(config: SelectiveConfig) -> dict[str, float]:
    """Print BLEU and chrF of the most certain translations and, of other texts, how well uncertainty tells them."""
    if config.out is not None:
        refuse_to_replace([config.out], overwrite=config.overwrite)
    trained = load_trained(config.run, device=config.device)
    elsewhere = foreign_texts(trained.config, config.out_of_domain)
    numbers = measured(trained, evaluated_text(config, trained), elsewhere, config, progress=True)
    print(
        "Scores of the most certain translations by several measures, the rank correlation of their certainty with "
        "chrF and, of text from elsewhere, the area under the ROC curve of telling it (.5 is chance):"
    )
    heads = dict.fromkeys(name.rpartition(" by ")[0] for name in numbers)
    rows = [{"by": head} | {measure: numbers.get(f"{head} by {measure}", "") for measure in MEASURES} for head in heads]
    print(as_table(rows))
    if config.out is not None:
        write_numbers(config.out, numbers, {name: definition(name) for name in numbers})
        print(config.out)
    return numbers


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
) -> dict[str, float]:
    """What the uncertainty of translations of a text is worth, and whether it tells texts from elsewhere."""

    def doubted(some: ParallelText) -> tuple[ParallelText, list[Translated], Measures]:
        some = some if config.pairs is None else some.first(config.pairs)
        translations = translate(trained, some, config, progress=progress)
        return some, translations, translation_uncertainty(trained, some, translations)

    text, translations, uncertainty = doubted(text)

    def scores(places: Sequence[int]) -> dict[str, float]:
        chosen, some = [translations[place] for place in places], text.chosen(places)
        return {name: score(chosen, some, trained.config).score for name, score in (("BLEU", bleu), ("chrF", chrf))}

    numbers = dict[str, float]()
    for share in dict.fromkeys(sorted((*config.coverage, 1.0))):
        # 0.07 * 100 is 7.000000000000001, and means 7
        count = max(1, math.ceil(share * len(text) * (1 - 1e-12)))
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
