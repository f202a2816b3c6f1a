"""Selective translation: how good are the most certain translations, and is text from elsewhere less certain?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.datasets.text.batches import BucketSampler, EncodedText
from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.results import write_numbers
from experiments.nmt.config import SelectiveConfig
from experiments.nmt.data import check_coverage, load_text, tokenised
from experiments.nmt.evaluation import Translated, bleu, chrf, translate
from experiments.nmt.files import evaluated_text
from experiments.nmt.model import Trained, load_trained
from experiments.reporting.columns import Row
from experiments.reporting.tables import as_table
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import model_arguments
from experiments.sequence.own_text import refuse_to_replace
from experiments.sequence.uncertainty import word_uncertainty
from models.decoding import target_log_probs
from pyro_attention.posterior.predictive import seeded

__all__ = ["MEASURES", "SelectiveConfig", "selective_run", "translation_uncertainty"]

Scored = tuple[ParallelText, list[Translated], dict[str, Tensor]]  # a text, its translations and their uncertainty

MEASURES = {
    "log probability": "minus the log probability of a word piece of the translation, the attention integrated out",
    "entropy": "entropy of the next word piece, the attention integrated out",
    "attention": "mutual information of the next word piece and the attention: the doubt about where to look",
}
_SCORES = {"BLEU": bleu, "chrF": chrf}


def selective_run(config: SelectiveConfig) -> dict[str, float]:
    """Print BLEU and chrF of the most certain translations and, of other texts, how well uncertainty tells them."""
    check_coverage(config.coverage, of="translations")
    if config.out is not None:
        refuse_to_replace([config.out], overwrite=config.overwrite)
    trained = load_trained(config.run, device=config.device)
    texts = {"": evaluated_text(config, trained)} | _foreign_texts(config, trained)
    with user_errors(ValueError):
        scored = {name: _scored(trained, text, config) for name, text in texts.items()}
    own = scored[""]
    numbers, definitions, rows = _at_coverage(trained, own, (*config.coverage, 1.0))
    print(f"The most certain of {len(own[0])} translations, by the mean over their word pieces of three measures:")
    print(as_table(rows))
    if config.out_of_domain:
        found, meanings, rows = _areas(own[2], {name: one[2] for name, one in scored.items() if name})
        numbers, definitions = numbers | found, definitions | meanings
        print("\nText from elsewhere, told by its larger uncertainty (area under the ROC curve; .5 is chance):")
        print(as_table(rows))
    if config.out is not None:
        with user_errors(OSError):
            write_numbers(config.out, numbers, definitions)
        print(config.out)
    return numbers


@torch.no_grad()
def translation_uncertainty(
    trained: Trained, text: ParallelText, translations: Sequence[Translated]
) -> dict[str, Tensor]:
    """MEASURES of every translation, ``[sentences]``: means over its word pieces, the end of the sentence included.

    ``attention`` is not among them where the attention is deterministic and there is no such doubt.
    """
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(one.tokens, dtype=torch.int64) for one in translations]
    found = torch.zeros(len(MEASURES), len(text), dtype=torch.float64)
    inference = trained.inference(samples=None)
    for rows in BucketSampler(data.lengths, sentences=sequence.BATCH, shuffle=False):
        batch = data[rows].to(trained.device)
        doubt = word_uncertainty(trained, batch, num_samples=trained.config.num_samples)
        with seeded(trained.config.seed):
            log_probs = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
        parts = torch.stack([-log_probs, doubt.total, doubt.attention]).where(batch.target_mask, 0).double()
        found[:, rows] = (parts.sum(-1) / batch.target_mask.sum(-1)).cpu()
    kept = [*MEASURES] if trained.is_random or inference.sums_out(trained.model) else [*MEASURES][:2]
    return dict(zip(kept, found, strict=False))


def _foreign_texts(config: SelectiveConfig, trained: Trained) -> dict[str, ParallelText]:
    """Test texts of the data sets that are out of domain, read as the network's own was."""
    texts: dict[str, ParallelText] = {}
    for name in config.out_of_domain:
        if name == trained.config.dataset:
            raise UserError(f"--out-of-domain is {name}, expected other data sets than the one that is trained on")
        foreign = replace(trained.config, dataset=name, text=None, test_pairs=config.pairs)
        if tokenised(foreign):  # what divides the network's own text has divided this one already
            foreign = replace(foreign, tokenize=None)
        with user_errors(ValueError, OSError):
            texts[name] = load_text(foreign, "test")
    return texts


def _scored(trained: Trained, text: ParallelText, config: SelectiveConfig) -> Scored:
    """Translations of the first pairs of a text, and how uncertain they are."""
    if config.pairs is not None:
        text = text.first(config.pairs)
    translations = translate(trained, text, config, progress=True)
    return text, translations, translation_uncertainty(trained, text, translations)


def _at_coverage(
    trained: Trained, scored: Scored, coverage: Sequence[float]
) -> tuple[dict[str, float], dict[str, str], list[Row]]:
    """Numbers, their definitions and the rows of a table: scores of the most certain translations by every measure."""
    text, translations, uncertainty = scored
    numbers, definitions, rows = dict[str, float](), dict[str, str](), list[Row]()
    for share in dict.fromkeys(sorted(coverage)):
        # 0.07 * 100 is 7.000000000000001, and means 7
        count = math.ceil(share * len(text) * (1 - 1e-12))
        row: Row = {"kept": f"{share:.0%}", "sentences": count}
        for measure, values in uncertainty.items():
            places = values.argsort(stable=True)[:count].tolist()
            chosen, some = [translations[place] for place in places], text.chosen(places)
            for score, function in _SCORES.items():
                found, name = function(chosen, some, trained.config), f"{score} at {share:.0%} by {measure}"
                row[f"{score} by {measure}"], numbers[name] = f"{found.score:.1f}", found.score
                definitions[name] = (
                    f"{score} of the {share:.0%} most certain translations, the least {MEASURES[measure]} (mean over "
                    f"its word pieces); sacrebleu {found.signature}"
                )
        rows.append(row)
    return numbers, definitions, rows


def _areas(
    own: Mapping[str, Tensor], foreign: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, float], dict[str, str], list[Row]]:
    """Areas under the ROC curve of telling the sentences of other texts by their larger uncertainty."""
    numbers, definitions, rows = dict[str, float](), dict[str, str](), list[Row]()
    for text, found in foreign.items():
        row: Row = {"text": text, "sentences": len(found["entropy"])}
        for measure, values in own.items():
            truth = torch.cat([torch.zeros(len(values)), torch.ones(len(found[measure]))])
            area = float(roc_auc_score(truth.numpy(), torch.cat([values, found[measure]]).numpy()))
            name = f"auroc of {text} by {measure}"
            row[f"by {measure}"], numbers[name] = f"{area:.3f}", area
            definitions[name] = (
                f"area under the ROC curve of telling translations of {text} from those of the test text by the larger "
                f"{MEASURES[measure]} (mean over the word pieces)"
            )
        rows.append(row)
    return numbers, definitions, rows
