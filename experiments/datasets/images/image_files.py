"""Where photographs lie, as files or inside tar archives, and opening one of them."""

import io
import tarfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from experiments.datasets.untrusted import MOST_BYTES, clipped, is_there, read_bytes

__all__ = ["FORMATS", "MOST_PIXELS", "SKIP_BAD", "ImageFile", "open_photograph", "tar_images"]

# Of Pillow's formats those of photographs and of the web; others (EPS) are programs, which Ghostscript would run.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 64_000_000  # of a photograph; 8000 x 8000, 256 MB when it is unpacked

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
            OSError: there is no such file, or it cannot be read.
            ValueError: the file is cut off, damaged, of another format than FORMATS or of more than MOST_PIXELS.
        """
        return _picture(self._bytes(), str(self), remedy=f"Replace it by an intact copy, or {SKIP_BAD}.")

    def _bytes(self) -> bytes:
        if self.member is None:
            return read_bytes(self.path, expected=_EXPECTED)
        if not 0 <= self.size <= MOST_BYTES:
            raise ValueError(f"{self}: {self.size} bytes; expected at most {MOST_BYTES}. Leave it out of the archive.")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def open_photograph(path: Path) -> Image.Image:
    """Return one photograph in RGB, turned upright where the camera noted how it was held.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: as of `ImageFile.open`, or no file.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a photograph, such as one inside it")
    content = read_bytes(path, expected=_EXPECTED)
    return _picture(content, str(path), remedy="Name another file.", upright=True)


def _picture(content: bytes, name: str, *, remedy: str, upright: bool = False) -> Image.Image:
    try:
        image = _decode(content)
        return ImageOps.exif_transpose(image) if upright else image
    except Exception as error:  # Pillow's readers of formats raise whatever Python can on damaged bytes
        # Pillow's message may hold the address of the object, which tells nothing.
        unknown = isinstance(error, UnidentifiedImageError)
        seen = "no picture" if unknown else f"damaged or too large, {clipped(str(error) or type(error).__name__)}"
        raise ValueError(f"{name}: {seen} ({len(content)} bytes); expected {_EXPECTED}. {remedy}") from error


def _decode(content: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is tighter
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    with image:
        width, height = image.size  # the header's: nothing is unpacked yet
        if width * height > MOST_PIXELS:
            raise ValueError(f"{width} x {height} pixels, more than {MOST_PIXELS} (MOST_PIXELS)")
        return image.convert("RGB")


def tar_images(path: Path) -> dict[str, ImageFile]:
    """Return the files of an uncompressed tar archive by their names without folders; ValueError if it is damaged."""
    if not is_there(path):
        raise FileNotFoundError(f"{path} is missing; expected an uncompressed tar archive of photographs.")
    files = {}
    try:
        end = path.stat().st_size
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                # with a size below 0 the next member would be this one again, for ever
                if member.size < 0 or (member.isfile() and member.offset_data + member.size > end):
                    name = clipped(member.name)
                    raise ValueError(f"member {name!r} has {member.size} bytes, of {end} of the archive")
                if member.isfile():
                    file = ImageFile(path, clipped(member.name), member.offset_data, member.size)
                    files[file.name] = file
    # an index out of range in what tells the holes of a file, a number out of range in a long header
    except (tarfile.TarError, ValueError, IndexError, OverflowError, MemoryError, EOFError) as error:
        seen = clipped(str(error) or type(error).__name__)
        raise ValueError(
            f"{path}: no intact tar archive: {seen}; expected an uncompressed one. Replace it by an intact copy."
        ) from error
    return files
