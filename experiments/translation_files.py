"""Translate a file, align a file, and evaluate with other options: what one does with a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from experiments.alignment_figures import interval_heatmaps, prior_and_posterior, weights_heatmap
from experiments.datasets.parallel_text import ParallelText, Rules, clean_pairs, read_lines, read_parallel
from experiments.figures import save
from experiments.results import UserError, metrics_table, user_errors, write_atomic
from experiments.translation_alignments import PairAlignment, align_pairs
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


@dataclass(frozen=True, kw_only=True)
class TranslateConfig:
    """Translate a text file, a sentence a line.

    Args:
        run: Folder of a trained network.
        file: The file, UTF-8.
        out: Where to write the translations; beside the file, with the language as its ending, when omitted.
        beam: Live hypotheses of the beam search; as in training when omitted.
        k_max: Keep so many largest weights of each word.
        samples: Average the next word's probability over so many posterior samples; 0 takes the mean weights. For
            weibull, lognormal, gamma and dirichlet.
        max_words: Most words of a sentence.
        device: Where to compute.
    """

    run: Path
    file: Path
    out: Path | None = None
    beam: PositiveInt | None = None  # type: ignore[valid-type]
    k_max: PositiveInt | None = None  # type: ignore[valid-type]
    samples: NonNegativeInt = 0  # type: ignore[valid-type]
    max_words: PositiveInt = 200  # type: ignore[valid-type]
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class AlignConfig:
    """Align the words of two text files that translate each other line by line.

    Args:
        run: Folder of a trained network.
        source: File of the source sentences, UTF-8.
        target: File of their translations.
        out: Folder for alignments.txt (Pharaoh format, words from 0, source first) and the pictures.
        reverse: Folder of a network trained in the other direction, to combine both.
        symmetrise: How to combine them.
        method: argmax: the most probable source word of each target word; threshold: every link of at least
            --threshold; mbr: minimum Bayes risk under the alignment error rate.
        threshold: Smallest probability of a link.
        gold: File of gold links, Pharaoh (i-j sure, ipj possible) or NAACL format, to score against.
        gold_index: What its first word counts as; 0 for Pharaoh and 1 for NAACL when omitted.
        pictures: Sentence pairs to draw, from the first on.
        num_samples: Posterior samples of random attention weights.
        max_words: Most words of a sentence.
        device: Where to compute.
    """

    run: Path
    source: Path
    target: Path
    out: Path = Path("alignments")
    reverse: Path | None = None
    symmetrise: Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"] = (
        "grow-diag-final-and"
    )
    method: Literal["argmax", "threshold", "mbr"] = "argmax"
    threshold: float = 0.5
    gold: Path | None = None
    gold_index: Literal[0, 1] | None = None
    pictures: NonNegativeInt = 5  # type: ignore[valid-type]
    num_samples: PositiveInt = 100  # type: ignore[valid-type]
    max_words: PositiveInt = 200  # type: ignore[valid-type]
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Perplexity and BLEU of a trained network on its test text, with other options than in training.

    Args:
        run: Folder of a trained network.
        beam: Live hypotheses of the beam search; as in training when omitted.
        k_max: Keep so many largest weights of each word.
        samples: Average the next word's probability over so many posterior samples; 0 takes the mean weights. For
            weibull, lognormal, gamma and dirichlet.
        device: Where to compute.
    """

    run: Path
    beam: PositiveInt | None = None  # type: ignore[valid-type]
    k_max: PositiveInt | None = None  # type: ignore[valid-type]
    samples: NonNegativeInt = 0  # type: ignore[valid-type]
    device: Literal["auto", "cpu", "cuda"] = "auto"


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
