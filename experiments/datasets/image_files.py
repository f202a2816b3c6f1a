"""Where photographs lie, as files or inside tar archives, and opening one of them."""

import io
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

__all__ = ["SKIP_BAD", "ImageFile", "tar_images"]

SKIP_BAD = "pass --skip-bad (skip=True) to leave out and count such images"
# What Pillow raises on damaged files, and on those that would fill the memory.
_UNREADABLE = (OSError, SyntaxError, ValueError, struct.error, EOFError, Image.DecompressionBombError)


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
            FileNotFoundError: there is no such file.
            ValueError: the file is cut off, damaged or no picture; the message names it.
        """
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        try:
            with Image.open(io.BytesIO(content)) as image:
                return image.convert("RGB")
        except _UNREADABLE as error:
            # Pillow's message may hold the address of the object, which tells nothing.
            seen = "no picture" if isinstance(error, UnidentifiedImageError) else f"damaged, {error}"
            raise ValueError(
                f"{self}: {seen} ({len(content)} bytes); expected a photograph that Pillow can read, such as a JPEG. "
                f"Replace it by an intact copy, or {SKIP_BAD}."
            ) from error


def tar_images(path: Path) -> dict[str, ImageFile]:
    """Return the files of an uncompressed tar archive by their names without folders.

    Raises:
        ValueError: the archive is damaged, cut off or compressed; the message names it.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            members = [member for member in archive if member.isfile()]
    except tarfile.TarError as error:
        raise ValueError(
            f"{path}: no intact tar archive: {error}; expected an uncompressed one. Replace it by an intact copy."
        ) from error
    files = [ImageFile(path, member.name, member.offset_data, member.size) for member in members]
    return {file.name: file for file in files}
