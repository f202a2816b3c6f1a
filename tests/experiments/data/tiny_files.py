"""Tiny photographs and text files."""

import io
import tarfile
from pathlib import Path

from PIL import Image


def photograph(colour=(200, 30, 40), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    """A photograph of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (12, 10), colour).convert(mode).save(file, kind)
    return file.getvalue()


def packed_photographs(names: list[str]) -> bytes:
    """A tar archive of photographs in a folder; more red in each."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for place, name in enumerate(names):
            content = photograph((40 * place, 0, 0))
            member = tarfile.TarInfo(f"images/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def write(path: Path, content: str | bytes) -> Path:
    """A file, and the folders on the way to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
