"""IWSLT14: TED talks, tokenised and in small letters, as fairseq's prepare-iwslt14.sh writes them, in iwslt14-de-en.

Joints of word pieces ("@@ ") are undone. Where train.* is missing but the samples lowres_train_v1.bpe.* and
lowres_train_v2.bpe.* are there, these are the training split and the name is `iwslt14-lowres`: without repeated pairs
and without pairs that share a side with the other splits.

Source:
    Cettolo et al., Report on the 11th IWSLT Evaluation Campaign, 2014.
"""

from collections import Counter
from pathlib import Path

from experiments.datasets.places import missing
from experiments.datasets.text.parallel_text import (
    PARALLEL,
    ParallelReader,
    ParallelText,
    Rules,
    clean_pairs,
    read_lines,
)

__all__ = ["distinct", "read_iwslt14"]


def read_iwslt14(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split, or of the training text its samples."""
    folder = root / "iwslt14-de-en"

    def files(stem: str) -> tuple[Path, Path]:
        first, second = (folder / f"{stem}.{language}" for language in languages)
        return first, second

    def there(stem: str) -> bool:
        return all(path.is_file() for path in files(stem))

    def read(stem: str) -> ParallelText:
        sides = [[line.replace(b"@@ ", b"") for line in read_lines(path)] for path in files(stem)]
        return clean_pairs(sides, files(stem), rules, name="iwslt14", languages=languages)

    stem = "valid" if split == "val" else split
    samples = [sample for sample in ("lowres_train_v1.bpe", "lowres_train_v2.bpe") if there(sample)]
    if there(stem):
        return read(stem)
    if split == "train" and samples:
        held_out = [read(other) for other in ("valid", "test") if there(other)]
        return distinct([read(sample) for sample in samples], held_out, name="iwslt14-lowres")
    expected = (
        "both files of these names, as fairseq's examples/translation/prepare-iwslt14.sh writes them "
        "(https://github.com/facebookresearch/fairseq)"
    )
    raise missing(" or ".join(map(str, files(stem))), expected, "iwslt14-de-en")


def distinct(samples: list[ParallelText], held_out: list[ParallelText], *, name: str) -> ParallelText:
    """Join samples without repeated pairs and without pairs that have a side in common with texts held out."""
    sources = {sentence for text in held_out for sentence in text.source}
    targets = {sentence for text in held_out for sentence in text.target}
    skipped: Counter[str] = Counter()
    kept: dict[tuple[str, str], None] = {}
    for text in samples:
        skipped.update(text.skipped)
        for pair in zip(text.source, text.target, strict=True):
            if pair in kept:
                skipped["repeated"] += 1
            elif pair[0] in sources or pair[1] in targets:
                skipped["held out"] += 1
            else:
                kept[pair] = None
    first, second = ([pair[side] for pair in kept] for side in (0, 1))
    return ParallelText(first, second, name, samples[0].languages, skipped=dict(skipped))


PARALLEL.register("iwslt14")(ParallelReader(read_iwslt14, ("de", "en"), tokenised=True))
