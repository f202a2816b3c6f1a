"""A tiny SST-2 on disk, of sentences of the toy corpus: those with a question mark are positive."""

from pathlib import Path

from experiments.data.text.parallel import toy_translation


def write_reviews(root: Path, *, train: int = 24, dev: int = 12) -> Path:
    """Files glue/SST-2/train.tsv and dev.tsv below a folder, which is returned."""
    folder = root / "glue" / "SST-2"
    folder.mkdir(parents=True, exist_ok=True)
    texts = toy_translation(train=train, val=dev, test=1)
    for name, split in (("train", "train"), ("dev", "val")):
        lines = [f"{sentence} \t{int(sentence.endswith('?'))}\n" for sentence in texts[split].target]
        (folder / f"{name}.tsv").write_text("".join(["sentence\tlabel\n", *lines]))
    return root
