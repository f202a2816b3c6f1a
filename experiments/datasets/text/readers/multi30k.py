"""Multi30k: captions of photographs, in multi30k/task1; fetched from its authors' repository when missing.

Source:
    Elliott, Frank, Sima'an and Specia, Multi30K, 2016.
"""

from pathlib import Path

from experiments.datasets.text.multi30k_files import find_multi30k
from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules, read_parallel


def read_multi30k(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split, the test split being that of 2016; missing files are fetched."""
    paths = find_multi30k(root, "test_2016_flickr" if split == "test" else split, languages)
    return read_parallel(*paths, languages=languages, name="multi30k", **rules._asdict())


PARALLEL.register("multi30k")(ParallelReader(read_multi30k, ("de", "en", "fr")))
