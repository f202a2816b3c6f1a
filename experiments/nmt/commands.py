"""Commands of a trained translation network: translate, evaluate and align files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.data.text.parallel_text import ParallelText, Rules
from experiments.files import UserError, check_outputs, user_errors
from experiments.nmt.align import (
    SAMPLES,
    PairAlignment,
    aligned_pairs,
    alignment_views,
    table_lines,
    write_alignments,
)
from experiments.nmt.config import AlignConfig, EvaluateConfig, TranslateConfig
from experiments.nmt.evaluation import bleu, chrf, perplexity, translate
from experiments.nmt.task import Trained, load_text, load_trained
from experiments.nmt.texts import read_gold, read_pairs
from experiments.report.terminal import metrics_table, wrapped
from experiments.sequence.text_files import read_source, write_lines
from pyro_attention.alignments.priors import AlignmentPrior
from pyro_attention.analysis import alignment_error_rate
from pyro_attention.families.distribution import LogWeights

MOST_PAIRS = 200  # sentence pairs on the page of alignments


def translate_file(config: TranslateConfig) -> Path:
    """Translate a file line by line, and print where the translations are; lines left out are named on stderr."""
    trained = load_trained(config.run, device=config.device)
    languages = trained.config.source, trained.config.target
    out = config.out or config.file.with_suffix(f".{languages[1]}")
    rules = Rules(trained.config.lowercase, config.max_words, words=trained.config.words)
    source = read_source(config.file, rules, out, config.overwrite)
    text = ParallelText(source.sentences, [""] * len(source.sentences), config.file.name, languages)
    translations = translate(trained, text, config, progress=True)
    source.write([translation.text for translation in translations], [translation.cut for translation in translations])
    case = ", lower-cased as the text of the training" if trained.config.lowercase else ""
    print(f"{len(translations)} sentences{case}: {out}")
    return out


def evaluation_text(config: EvaluateConfig, trained: Trained) -> ParallelText:
    """Load the sentence pairs of the two files, or of the test text.

    Raises:
        UserError: Only one file is given, or a file is missing or has a bad line.
    """
    source, target = config.source_file, config.target_file
    if source is not None and target is not None:
        return read_pairs(source, target, trained.config, max_words=config.max_words, words=trained.config.words)
    if source is not None or target is not None:
        raise UserError("one of --source-file and --target-file is missing; give both, or neither for the test text")
    with user_errors(ValueError, OSError):
        return load_text(trained.config, "test")


def evaluate_run(config: EvaluateConfig) -> dict[str, float]:
    """Print perplexity, BLEU and chrF of a trained network, and return them."""
    trained = load_trained(config.run, device=config.device)
    text = evaluation_text(config, trained)
    translations = translate(trained, text, config, progress=True)
    scores = {"BLEU": bleu(translations, text, trained.config), "chrF": chrf(translations, text, trained.config)}
    metrics = {"perplexity": perplexity(trained, text, k_max=config.k_max)}
    metrics |= {name: score.score for name, score in scores.items()}
    print(metrics_table(metrics, ("perplexity", "BLEU", "chrF")))
    print(*(f"{name}: {score.signature}" for name, score in scores.items()), sep="\n")
    if trained.inference().sums_out(trained.model) and config.sum_over != "all":
        note = f"The search sums over the {config.sum_over} most probable alignments of each word (--sum-over)."
        print(wrapped(note))
    if cut := sum(translation.cut for translation in translations):
        note = f"{cut} of {len(translations)} translations were cut at {config.max_length} word pieces (--max-length)"
        print(wrapped(note))
    return metrics


def align_file(config: AlignConfig) -> Path:
    """Align two files, write links and page, and print where they are; with gold links also print the error rate."""
    trained = load_trained(config.run, device=config.device)
    # gold links refer to words between blanks
    words = trained.config.words if config.gold is None else "none"
    text = read_pairs(config.source_file, config.target_file, trained.config, max_words=config.max_words, words=words)
    gold = None if config.gold is None else read_gold(config.gold, text)
    out = config.out or Path("alignments")
    links_file, table, page = (out / name for name in ("alignments.txt", "probabilities.tsv", "alignments.html"))
    word_files = dict[Path, list[str]]()  # words that the links refer to, if they are not those between blanks
    if words != "none":
        word_files = {out / f"words.{text.languages[0]}": text.source, out / f"words.{text.languages[1]}": text.target}
    inputs = [config.source_file, config.target_file, *([] if config.gold is None else [config.gold])]
    check_outputs([links_file, page, *word_files, *[table] * config.table], inputs, overwrite=config.overwrite)
    pairs = _align_text(config, trained, text)
    links = [pair.links for pair in pairs]
    write_lines(links_file, links)
    for path, sentences in word_files.items():
        write_lines(path, sentences)
    shown = text.first(MOST_PAIRS)
    views = alignment_views({trained.config.guide: pairs[: len(shown)]}, shown, gold)
    write_alignments(page, views, title=f"{config.source_file.name} and {config.target_file.name}, aligned")
    print(f"{len(links)} sentence pairs: {links_file}", *word_files, f"the first {len(shown)}: {page}", sep="\n")
    if config.table:
        write_lines(table, table_lines(pairs, links))
        print(table)
    if gold is not None:
        scores = alignment_error_rate(links, gold)
        rates = {"AER": scores.aer, "precision": scores.precision, "recall": scores.recall}
        print(", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items()))
    return links_file


def _align_text(config: AlignConfig, trained: Trained, text: ParallelText) -> list[PairAlignment]:
    """Align a text; with ``config.exact`` the exact posterior replaces the posterior of the scheme."""
    if config.exact and trained.model.attention.prior.kind not in (AlignmentPrior.kind, LogWeights.kind):
        raise UserError(
            f"{trained.config.out} was trained with guide {trained.config.guide}, whose weights cannot be summed out; "
            f"leave out --exact"
        )
    pairs = aligned_pairs(trained, text, num_samples=SAMPLES, exact=config.exact, progress=True)
    return [pair if pair.exact is None else replace(pair, posterior=pair.exact.unsqueeze(0)) for pair in pairs]
