"""Translate a file, and evaluate with other options or on other text: what one does with a trained network."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.results import write_numbers
from experiments.nmt.config import EvaluateConfig, TranslateConfig
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import bleu, chrf, perplexity, translate
from experiments.nmt.input import read_pairs, read_source
from experiments.nmt.model import Trained, load_trained
from experiments.report.tables import metrics_table
from experiments.sequence.own_text import refuse_to_replace, write_lines

__all__ = ["EvaluateConfig", "TranslateConfig", "evaluate_run", "evaluated_text", "translate_file"]

EVALUATED = {
    "perplexity": "perplexity per word piece: alignments summed out exactly (with --k-max, over so many largest); for "
    "Bayesian attention the predictive one, the mean probability over posterior samples; for soft plain",
    "sentences": "number of sentence pairs",
    "cut": "number of translations that were cut at the largest length",
}


def translate_file(config: TranslateConfig) -> Path:
    """Write the translations, a line for each of the file, and print where they are; what was left out on stderr."""
    trained = load_trained(config.run, device=config.device)
    out = config.out or config.file.with_suffix(f".{trained.config.target}")
    if out.resolve() == config.file.resolve():
        raise UserError(f"the translations would replace {config.file}; name another file by --out")
    refuse_to_replace([out], overwrite=config.overwrite)
    source = read_source(config.file, trained.config, max_words=config.max_words)
    for fault in source.faults:
        print(f"{fault}; its translation is an empty line", file=sys.stderr)
    with user_errors(ValueError):
        found = translate(trained, source.text, config, progress=True)
    for place, translation in zip(source.places, found, strict=True):
        if translation.cut:
            cut = f"the translation of line {place + 1} was cut at {config.max_length} word pieces"
            print(f"{config.file}: {cut}; --max-length allows more", file=sys.stderr)
    write_lines(out, source.in_place(translation.text for translation in found))
    case = ", lower-cased as the text of the training" if trained.config.lowercase else ""
    print(f"{len(found)} sentences{case}: {out}")
    return out


def evaluated_text(config: EvaluateConfig, trained: Trained) -> ParallelText:
    """The sentence pairs of the two files, or of the test text; UserError where they cannot be had."""
    if (config.source_file is None) != (config.target_file is None):
        raise UserError("one of --source-file and --target-file is missing; expected both, or none for the test text")
    if config.source_file is not None and config.target_file is not None:
        return read_pairs((config.source_file, config.target_file), trained.config, max_words=config.max_words)
    with user_errors(ValueError, OSError):
        return load_text(trained.config, "test")


def evaluate_run(config: EvaluateConfig) -> dict[str, float]:
    """Print perplexity, BLEU and chrF, and write them where asked for."""
    if config.out is not None:
        refuse_to_replace([config.out], overwrite=config.overwrite)
    trained = load_trained(config.run, device=config.device)
    text = evaluated_text(config, trained)
    with user_errors(ValueError):
        found = translate(trained, text, config, progress=True)
    scores = {"BLEU": bleu(found, text, trained.config), "chrF": chrf(found, text, trained.config)}
    metrics = {"perplexity": perplexity(trained, text, k_max=config.k_max)}
    metrics |= {name: score.score for name, score in scores.items()}
    print(metrics_table(metrics))
    signatures = {name: score.signature for name, score in scores.items()}
    print("\n".join(f"{name}: {signature}" for name, signature in signatures.items()))
    if trained.inference().sums_out(trained.model) and config.sum_over != "all":
        print(f"The search sums over the {config.sum_over} most probable alignments of each word (--sum-over).")
    if cut := sum(translation.cut for translation in found):
        print(f"{cut} of {len(found)} translations were cut at {config.max_length} word pieces (--max-length)")
    if config.out is not None:
        numbers = metrics | {"sentences": len(found), "cut": cut}
        definitions = EVALUATED | {name: f"sacrebleu {signature}" for name, signature in signatures.items()}
        with user_errors(OSError):
            write_numbers(config.out, numbers, definitions)
        print(config.out)
    return metrics
