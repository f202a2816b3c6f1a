"""Photographs as people see them, for training and for `--photo`: upright, of all gray levels, on white."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from experiments.data.images.captions import ImageFile, open_photograph, tar_images

_ORIENTATION = 0x0112  # EXIF's tag
# how a camera's pixels come to lie upright, by the number of the tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def readers(tmp_path, content):
    """One file by every reader: of a training, from a folder and an archive, and of `--photo`."""
    path, archive = tmp_path / "a.file", tmp_path / "all.tar"
    path.write_bytes(content)
    with tarfile.open(archive, "w") as packed:
        packed.add(path, "folder/a.file")
    images = ImageFile(path).open(), tar_images(archive)["a.file"].open(), open_photograph(path)
    assert {image.mode for image in images} == {"RGB"}
    return [np.asarray(image).astype(int) for image in images]


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def taken(orientation, mode="RGB"):
    """A picture of four colors as a camera saves it that was held otherwise, with the note, and the picture upright."""
    colors = np.array([[(250, 10, 10), (10, 250, 10), (10, 10, 250)], [(250, 250, 10), (10, 10, 10), (250, 250, 250)]])
    stored = Image.fromarray(colors.repeat(16, 0).repeat(16, 1).astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    upright = stored.transpose(_TURNS[orientation]) if orientation in _TURNS else stored
    return stored, exif, upright


@pytest.mark.parametrize("orientation", [1, *_TURNS])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_photographs_are_upright(kind, orientation, tmp_path):
    stored, exif, upright = taken(orientation)
    expected = np.asarray(upright).astype(int)
    for pixels in readers(tmp_path, saved(stored, kind, exif=exif)):
        assert pixels.shape == expected.shape
        # colors of JPEG and WebP are blurred at the borders
        assert np.abs(pixels - expected).mean() < (0.01 if kind == "PNG" else 15)


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_photographs_of_other_modes_are_upright(mode, tmp_path):
    stored, exif, upright = taken(6, "L" if mode == "I;16" else mode)
    expected = np.asarray(upright.convert("RGB"))
    if mode == "I;16":
        stored = Image.fromarray(np.asarray(stored).astype(np.uint16) * 257)
        assert stored.mode == "I;16"
    kind = "JPEG" if mode == "CMYK" else "PNG"
    for pixels in readers(tmp_path, saved(stored, kind, exif=exif)):
        assert pixels.shape == expected.shape
        assert np.abs(pixels - expected).mean() < 15


@pytest.mark.parametrize("transparent", [False, True])
def test_gray_levels_of_16_bits_are_scaled(transparent, tmp_path):
    levels = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    expected = (levels / 257).round()
    options = {}
    if transparent:
        options, expected = {"transparency": int(levels[5, 7])}, np.where(levels == levels[5, 7], 255, expected)
    for pixels in readers(tmp_path, saved(Image.fromarray(levels), "PNG", **options)):
        np.testing.assert_array_equal(pixels, np.stack([expected] * 3, -1))
        assert transparent or pixels.mean() == pytest.approx(127.5, abs=0.01)


def with_hidden_half(kind):
    """Ink on the left, and on the right a color that is transparent."""
    levels = np.zeros((8, 8), np.uint8)
    levels[:, 4:] = 77
    opaque = np.where(levels == 77, 0, 255).astype(np.uint8)
    if kind in ("RGBA", "WEBP"):
        return saved(Image.fromarray(np.dstack([levels] * 3 + [opaque])), "WEBP" if kind == "WEBP" else "PNG")
    if kind == "LA":
        return saved(Image.merge("LA", [Image.fromarray(levels), Image.fromarray(opaque)]), "PNG")
    if kind in ("P", "GIF"):
        palette = Image.fromarray((levels == 77).astype(np.uint8)).copy()
        palette.putpalette([0, 0, 0, 77, 77, 77])
        return saved(palette, "GIF" if kind == "GIF" else "PNG", transparency=1)
    picture = Image.fromarray(levels).convert(kind)
    return saved(picture, "PNG", transparency=77 if kind == "L" else (77, 77, 77))


@pytest.mark.parametrize("kind", ["RGBA", "WEBP", "LA", "P", "GIF", "L", "RGB"])
def test_what_is_transparent_lies_on_white(kind, tmp_path):
    for pixels in readers(tmp_path, with_hidden_half(kind)):
        assert pixels[:, :3].max() < 8
        assert pixels[:, 5:].min() > 247


def test_what_is_half_transparent_is_mixed_with_white(tmp_path):
    picture = Image.new("RGBA", (4, 4), (0, 100, 200, 51))  # a fifth
    for pixels in readers(tmp_path, saved(picture, "PNG")):
        np.testing.assert_allclose(pixels[0, 0], [204, 224, 244], atol=1)
