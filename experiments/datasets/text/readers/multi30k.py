"""Multi30k: captions of photographs, in multi30k/task1; fetched from its authors' repository when missing.

Source:
    Elliott, Frank, Sima'an and Specia, Multi30K, 2016; https://github.com/multi30k/dataset/tree/master/data/task1/raw.
"""

from pathlib import Path

from experiments.datasets.fetch import complete_folder
from experiments.datasets.places import OTHER_FOLDER
from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules, read_parallel

ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab/data/task1/raw"
# Checksums of the unpacked files of Multi30k, computed from copies. The copies are the published files: packed again
# by gzip -6 with a time of 21 December 2017, all nine have the MD5 sums that torchtext 0.9 lists for the archives.
SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


def read_multi30k(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split, the test split being that of 2016; missing files are fetched."""
    folder, stem = root / "multi30k" / "task1", "test_2016_flickr" if split == "test" else split
    names = [f"{stem}.{language}" for language in languages]
    remedy = f"Fetch and unpack it there, or name the folder that holds multi30k/task1 by {OTHER_FOLDER}."
    complete_folder(folder, names, ADDRESS, SHA256, remedy=remedy, ending=".gz")
    source, target = (folder / name for name in names)
    return read_parallel(source, target, languages=languages, name="multi30k", **rules._asdict())


PARALLEL.register("multi30k")(ParallelReader(read_multi30k, ("de", "en", "fr")))
