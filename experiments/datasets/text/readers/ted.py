"""TED talks where the whole training text of IWSLT14 is missing: what there is of it, and further pairs.

The training text is that of `iwslt14` (its samples, where it has no other) and the pairs of ted-de-en-extra, train.de
and train.en, tokenised and in small letters as those are and perhaps packed as .gz: without repeated pairs, without
pairs that share a side with held-out text, and without pairs in which words were replaced by gaps, <S_3> in German and
<T_3> in English. About half of the further pairs have such gaps; a network would learn to write them.

Every fourth pair of iwslt14-de-en/valid.* is the validation text and the others are the test text, as test.* may be
missing too. So its scores cannot be compared with published ones.

Source:
    Cettolo et al., Report on the 11th IWSLT Evaluation Campaign, 2014.
"""

import re
from dataclasses import replace
from pathlib import Path

from experiments.datasets.text.aligned_text import packed_pair
from experiments.datasets.text.parallel_text import (
    PARALLEL,
    ParallelReader,
    ParallelText,
    Rules,
    clean_pairs,
    read_lines,
)
from experiments.datasets.text.readers.iwslt14 import distinct, read_iwslt14

EVERY = 4  # of so many held-out pairs one is for validation
_FOLDER = "ted-de-en-extra"
_GAP = re.compile(rb"<[ST]_\d+>", re.IGNORECASE)


def read_ted(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split."""
    # what leaves training pairs out does not change what is held out
    held_out = read_iwslt14(root, "val", languages, Rules(lowercase=rules.lowercase) if split == "train" else rules)
    if split == "train":
        texts = [read_iwslt14(root, "train", languages, rules), _extra(root / _FOLDER, languages, rules)]
        return distinct(texts, [held_out], name="ted")
    places = [place for place in range(len(held_out)) if (place % EVERY == 0) == (split == "val")]
    return replace(held_out.chosen(places), name="ted")


def _extra(folder: Path, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """The further pairs that are whole."""
    paths = packed_pair(folder, "train", languages, of="TED talks")
    sides = [read_lines(path) for path in paths]
    pairs = zip(*sides, strict=False)  # sides that differ in length are refused below
    whole = [number for number, pair in enumerate(pairs) if not any(_GAP.search(line) for line in pair)]
    text = clean_pairs(sides, paths, rules, name=_FOLDER, languages=languages, numbers=whole)
    gaps = len(sides[0]) - len(whole)
    return replace(text, skipped=text.skipped | ({"gaps": gaps} if gaps else {}))


PARALLEL.register("ted")(ParallelReader(read_ted, ("de", "en"), tokenised=True))
