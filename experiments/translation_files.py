"""Translate a file, align a file, and evaluate with other options: what one does with a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.alignment_figures import interval_heatmaps, prior_and_posterior, weights_heatmap
from experiments.datasets.parallel_text import ParallelText, Rules, clean_pairs, read_lines, read_parallel
from experiments.figures import save
from experiments.results import UserError, metrics_table, user_errors, write_atomic
from experiments.translation_alignments import PairAlignment, align_pairs
from experiments.translation_config import AlignConfig, EvaluateConfig, TranslateConfig
from experiments.translation_evaluation import batches, bleu, perplexity, progress_bar, translate
from experiments.translation_model import Trained, load_text, load_trained
from pyro_attention.analysis import (
    Alignment,
    GoldAlignment,
    alignment_error_rate,
    hard_alignment,
    read_naacl,
    read_pharaoh,
    symmetrise,
)

__all__ = [
    "AlignConfig",
    "EvaluateConfig",
    "TranslateConfig",
    "align_file",
    "aligned_pairs",
    "draw_pair",
    "evaluate_run",
    "translate_file",
]


def translate_file(config: TranslateConfig) -> Path:
    """Write the translations, a line for each of the file, and print where they are."""
    trained = load_trained(config.run, device=config.device)
    out = config.out or config.file.with_suffix(f".{trained.config.target}")
    if out.resolve() == config.file.resolve():
        raise UserError(f"the translations would replace {config.file}; name another file by --out")
    rules = Rules(trained.config.lowercase, config.max_words)
    with user_errors(ValueError, OSError):
        lines = read_lines(config.file)
        # the target is not there yet; clean_pairs wants one
        text = clean_pairs([lines, lines], (config.file, config.file), rules, name="file", languages=("", ""))
        text = ParallelText(text.source, [""] * len(text), "file", (trained.config.source, trained.config.target))
        found = translate(trained, text, k_max=config.k_max, beam=config.beam, samples=config.samples, progress=True)
    write_atomic(out, lambda file: file.write("".join(f"{line}\n" for line in found).encode()))
    print(f"{len(found)} sentences: {out}")
    return out


def evaluate_run(config: EvaluateConfig) -> dict[str, float]:
    """Print perplexity and BLEU."""
    trained = load_trained(config.run, device=config.device)
    with user_errors(ValueError, OSError):
        text = load_text(trained.config, "test")
        found = translate(trained, text, k_max=config.k_max, beam=config.beam, samples=config.samples, progress=True)
    scored = bleu(found, text)
    metrics = {"perplexity": perplexity(trained, text, k_max=config.k_max), "BLEU": scored.score}
    print(metrics_table(metrics), f"({scored.signature})")
    return metrics


def align_file(config: AlignConfig) -> Path:
    """Write the alignments and the pictures, print where they are and, against gold links, the error rate."""
    trained = load_trained(config.run, device=config.device)
    with user_errors(ValueError, OSError):
        text = _read(config, trained, (config.source, config.target))
        gold = None if config.gold is None else _read_gold(config, text)
    pairs = aligned_pairs(trained, text, num_samples=config.num_samples, progress=True)
    links = [_links(pair, config) for pair in pairs]
    if config.reverse is not None:
        links = _symmetrised(links, config)
    lines = "".join(f"{alignment}\n" for alignment in links)
    path = config.out / "alignments.txt"
    write_atomic(path, lambda file: file.write(lines.encode()))
    print(f"{len(links)} sentence pairs: {path}")
    if gold is not None:
        scores = alignment_error_rate(links, gold)
        print(f"AER {scores.aer:.3f}, precision {scores.precision:.3f}, recall {scores.recall:.3f}")
    for number, pair in enumerate(pairs[: config.pictures], 1):
        print(draw_pair(pair, config.out / f"pair-{number}.png", gold=None if gold is None else gold[number - 1]))
    return path


def _read(config: AlignConfig, trained: Trained, files: tuple[Path, Path]) -> ParallelText:
    languages = (trained.config.source, trained.config.target)
    rules = {"lowercase": trained.config.lowercase, "max_words": config.max_words}
    return read_parallel(*files, languages=languages, **rules)


def _read_gold(config: AlignConfig, text: ParallelText) -> list[GoldAlignment]:
    path = Path(str(config.gold))
    if not path.is_file():
        raise UserError(f"{path} is missing; expected gold links, a line for each sentence pair")
    sides = zip(text.source, text.target, strict=True)
    lengths = [(len(source.split()), len(target.split())) for source, target in sides]
    first_line = path.read_text(encoding="utf-8").lstrip().partition("\n")[0]
    naacl = "-" not in first_line and "p" not in first_line
    names = [str(number + naacl) for number in range(len(text))]
    index = int(naacl) if config.gold_index is None else config.gold_index
    read = read_naacl if naacl else read_pharaoh
    found = read(path, index=index, lengths=dict(zip(names, lengths, strict=True)))
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"{path} has no links of sentence {missing[0]}; expected {len(text)} sentences, as in the text")
    return [found[name] for name in names]


def aligned_pairs(
    trained: Trained, text: ParallelText, *, num_samples: int, progress: bool = False
) -> list[PairAlignment]:
    """Alignments of all sentence pairs, in the order of the text."""
    found: dict[int, PairAlignment] = {}
    with progress_bar(len(text), "aligning", shown=progress) as bar:
        for index, pair in align_pairs(trained, text, batches(trained, text), num_samples=num_samples):
            found[index] = pair
            bar.update()
    return [found[index] for index in range(len(text))]


def _links(pair: PairAlignment, config: AlignConfig) -> Alignment:
    return hard_alignment(pair.posterior, method=config.method, threshold=config.threshold)


def _symmetrised(links: list[Alignment], config: AlignConfig) -> list[Alignment]:
    other = load_trained(Path(str(config.reverse)), device=config.device)
    with user_errors(ValueError, OSError):
        text = _read(config, other, (config.target, config.source))
    back = [_links(pair, config).transposed() for pair in aligned_pairs(other, text, num_samples=config.num_samples)]
    return [symmetrise(*both, method=config.symmetrise) for both in zip(links, back, strict=True)]


def draw_pair(pair: PairAlignment, path: Path, *, gold: GoldAlignment | None = None) -> Path:
    """Prior beside an exact posterior; the mean of samples beside their credible intervals; weights alone."""
    words: dict[str, Any] = {"source": pair.source, "target": pair.target, "gold": gold}
    if len(pair.posterior) > 1:
        figure = interval_heatmaps(pair.posterior, **words)
    elif pair.prior is not None:
        figure = prior_and_posterior(pair.prior, pair.posterior, **words)
    else:
        figure = weights_heatmap(pair.posterior, **words)
    return save(figure, path)
