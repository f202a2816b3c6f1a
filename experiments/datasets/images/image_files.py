"""Photographs as files on disk, or in a tar archive; opened when they are wanted."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from experiments.files import reading

__all__ = ["FORMATS", "SKIP_BAD", "ImageFile", "open_photograph", "tar_images"]

# Of Pillow's formats those of photographs and of the web; others (EPS) are programs, which Ghostscript would run.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

SKIP_BAD = "pass --skip-bad (skip=True) to leave out and count such images"
_EXPECTED = f"a photograph that Pillow can read, such as a JPEG (of {', '.join(FORMATS)}, any kind)"


@dataclass(frozen=True)
class ImageFile:
    """A photograph on disk, which is opened when it is wanted.

    Args:
        path: the file, or the uncompressed tar archive that holds it.
        member: its name in the archive.
        offset: where it begins in the archive.
        size: its bytes in the archive.
    """

    path: Path
    member: str | None = None
    offset: int = 0
    size: int = -1

    @property
    def name(self) -> str:
        """Name without folders."""
        return Path(self.member or self.path).name

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}, member {self.member}"

    def open(self) -> Image.Image:
        """Return the picture in RGB, whatever its colours are (grey, CMYK, a palette).

        Raises:
            DamagedFileError: the file is missing, cut off, damaged, of another format than FORMATS or of more pixels
                than Pillow takes.
        """
        with reading(str(self), _EXPECTED, f"replace it by an intact copy, or {SKIP_BAD}"):
            with self.path.open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
            return _decode(content)


def open_photograph(path: Path) -> Image.Image:
    """Return one photograph in RGB, turned upright where the camera noted how it was held.

    Raises:
        DamagedFileError: as of `ImageFile.open`.
    """
    with reading(path, _EXPECTED, "name another file"):
        image = _decode(path.read_bytes())
        return ImageOps.exif_transpose(image)


def _decode(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        return image.convert("RGB")


def tar_images(path: Path) -> dict[str, ImageFile]:
    """Return the files of an uncompressed tar archive by their names without folders."""
    with reading(path, "an uncompressed tar archive of photographs"), tarfile.open(path, "r:") as archive:
        members = [member for member in archive if member.isfile()]
    files = [ImageFile(path, member.name, member.offset_data, member.size) for member in members]
    return {file.name: file for file in files}
