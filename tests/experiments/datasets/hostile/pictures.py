"""Pictures and archives of them."""

import io
import struct
import tarfile
import zlib
from pathlib import Path

from PIL import Image

from experiments.datasets.images.image_files import ImageFile, tar_images
from tests.experiments.datasets.hostile.case import Case, anywhere, later


def picture(kind: str = "JPEG", size: tuple[int, int] = (12, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 40)).save(file, kind)
    return file.getvalue()


def png(width: int, height: int, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG of so many pixels, of which only a few are there."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), *more, (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def with_notes(notes: bytes) -> bytes:
    """A JPEG with notes of the camera."""
    file = io.BytesIO()
    Image.new("RGB", (20, 10)).save(file, "JPEG", exif=b"Exif\0\0" + notes)
    return file.getvalue()


# What a.jpg holds, and what is said of it as a photograph of one's own.
BAD_PHOTOGRAPHS = {
    "missing": (None, "a.jpg is missing; expected a photograph that Pillow can read"),
    "folder": ("folder", "a.jpg is a folder; expected a photograph, such as one inside it"),
    "text": (b"text", "a.jpg: no picture (4 bytes); expected a photograph"),
    "cut off": (png(100, 100), "a.jpg: damaged or too large"),
    "notes": (with_notes(b"damaged"), "a.jpg: damaged or too large, not a TIFF file"),
    "large": (png(13_000, 13_000), "13000 x 13000 pixels, more than 64000000"),
    "bomb": (png(2**31 - 1, 2**31 - 1), "a.jpg: damaged or too large"),
}


def write_photograph(folder: Path, content: bytes | str | None) -> Path:
    """a.jpg in the folder: with this content, as a folder, or not there."""
    photo = folder / "a.jpg"
    if isinstance(content, bytes):
        photo.write_bytes(content)
    elif content == "folder":
        photo.mkdir()
    return photo


EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(canary) (w) file closefile\nshowpage\n%%EOF\n"
)
LARGE_JPEG = picture().replace(struct.pack(">HH", 8, 12), struct.pack(">HH", 65000, 65000))
SIDES = struct.pack("<HH", 65535, 65535)
LARGE_GIF = b"GIF89a" + SIDES + b"\x80\0\0" + bytes(6) + b"," + bytes(4) + SIDES + b"\0\x02\x02D\x01\0;"
LARGE_BMP = b"BM" + struct.pack("<IIIIiiHHIIiiII", 60, 0, 54, 40, 30000, 30000, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(6)
LARGE_WEBP = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f" + struct.pack("<I", 0x0FFFFFFF) + bytes(8)
OTHER_FORMATS = ("TIFF", "PPM", "ICO", "PCX", "TGA", "SGI", "DDS", "PDF")

PICTURES = [
    Case(f"picture: {name}", lambda root: ImageFile(root / "a.jpg").open(), {"a.jpg": content}, "a.jpg", seen)
    for name, content, seen in [
        ("EPS", EPS, "no picture"),
        *((kind, picture(kind), "no picture") for kind in OTHER_FORMATS),
        ("169 million pixels", png(13000, 13000), "13000 x 13000 pixels, more than 64000000 (MOST_PIXELS)"),
        ("pixels just over the bound", png(8000, 8001), "8000 x 8001 pixels, more than 64000000 (MOST_PIXELS)"),
        ("PNG of 4 * 10 ** 18 pixels", png(2**31 - 1, 2**31 - 1), "pixels"),
        ("PNG without width", png(0, 10), ""),
        ("JPEG of 4 * 10 ** 9 pixels", LARGE_JPEG, "pixels"),
        ("GIF of 4 * 10 ** 9 pixels", LARGE_GIF, "pixels"),
        ("BMP of 9 * 10 ** 8 pixels", LARGE_BMP, "pixels"),
        ("WebP of 3 * 10 ** 8 pixels", LARGE_WEBP, ""),
        ("text bomb", later(lambda: png(9, 9, (b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26))))), "damaged"),
        ("cut off", png(100, 100), "damaged"),
        ("empty", b"", "no picture (0 bytes)"),
        ("web page", b"<svg><script>x</script></svg>", "no picture"),
    ]
]
PICTURES += anywhere("picture", lambda root: ImageFile(root / "a.jpg").open(), "a.jpg")


# archives of pictures


def tar(size: int | None = None, content: bytes = b"x" * 600, **fields: object) -> bytes:
    """An archive of one file, whose header tells another size."""
    info = tarfile.TarInfo("a.jpg")
    info.size = len(content) if size is None else size
    for name, value in fields.items():
        setattr(info, name, value)
    padding = bytes(-len(content) % 512 + 1024)
    return info.tobuf(tarfile.GNU_FORMAT) + content + padding


def open_all(root: Path) -> None:
    for image in tar_images(root / "a.tar").values():
        image.open()


def holes() -> bytes:
    """A file with holes, the list of which goes on in a block that is not there."""
    header = bytearray(tar(type=tarfile.GNUTYPE_SPARSE)[:512])
    header[482] = 1
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:]))  # the checksum
    return bytes(header)


TARS = [
    Case(f"tar: {name}", open_all, {"a.tar": content}, "a.tar", seen)
    for name, content, seen in [
        ("EPS", tar(content=EPS), "member a.jpg: no picture"),
        ("size below 0", tar(-512), "has -512 bytes"),
        ("size below 0 of a link", tar(-1024, type=b"Z"), "has -1024 bytes"),
        ("10 ** 18 bytes", tar(10**18), "no intact tar archive"),
        ("longer than the archive", tar(5000), "no intact tar archive"),
        ("long name without end", tar(2**40, type=tarfile.GNUTYPE_LONGNAME), "no intact tar archive"),
        ("holes without end", holes(), "no intact tar archive"),
        ("packed", zlib.compress(tar()), "no intact tar archive"),
        ("no archive", b"no archive" * 99, "no intact tar archive"),
    ]
]
TARS += anywhere("tar", open_all, "a.tar")[:1] + anywhere("tar", open_all, "a.tar")[2:]
