"""A kept aligner: what is loaded is what was saved, and a damaged or mixed file is refused, naming its folder."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from pyro_attention.aligner import Aligner
from pyro_attention.aligner._storage import FILE

safetensors = pytest.importorskip("safetensors.numpy")

GERMAN = [line.split() for line in ("das haus", "das buch", "ein buch", "ein haus", "das alte haus")] * 4
ENGLISH = [line.split() for line in ("the house", "the book", "a book", "a house", "the old house")] * 4


@pytest.fixture(scope="module")
def small():
    return Aligner.fit(GERMAN, ENGLISH)


@pytest.fixture(scope="module")
def another():
    """Of as many words and pairs, so that all of its arrays have the same shapes."""
    turned = {"das": "ein", "ein": "das"}
    return Aligner.fit([[turned.get(word, word) for word in line] for line in GERMAN], ENGLISH)


@pytest.fixture
def kept(small, tmp_path):
    small.save(tmp_path / "kept")
    return tmp_path / "kept"


def parts(folder):
    """Arrays and metadata of the file of a folder."""
    content = (folder / FILE).read_bytes()
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    return {name: array.copy() for name, array in safetensors.load(content).items()}, metadata


def put(folder, arrays, metadata):
    (folder / FILE).write_bytes(safetensors.save(arrays, metadata))


def test_save_and_load(small, kept):
    assert [path.name for path in kept.iterdir()] == [FILE]
    for loaded, pair in zip(Aligner.load(kept)(GERMAN, ENGLISH), small(GERMAN, ENGLISH), strict=True):
        assert torch.equal(loaded.links, pair.links)
        assert torch.equal(loaded.target_null, pair.target_null)


def test_a_file_is_in_single_precision_whatever_torch_computes_in(tmp_path):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        aligner = Aligner.fit(GERMAN, ENGLISH)
        aligner.save(tmp_path)
        links = aligner(GERMAN, ENGLISH)[0].links
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(Aligner.load(tmp_path)(GERMAN, ENGLISH)[0].links, links.float(), atol=1e-4, rtol=1e-4)


def test_members_ratios_and_settings_are_kept(tmp_path):
    aligner = Aligner.fit(GERMAN * 3, ENGLISH * 3, parts=3)
    aligner.settings = {"tokenize": True, "form": "ä"}
    aligner.save(tmp_path)
    loaded = Aligner.load(tmp_path)
    assert len(loaded.ensemble.members) == 3
    assert loaded.settings == aligner.settings
    assert torch.equal(loaded.ratios, aligner.ratios)
    assert not torch.equal(loaded.ratios, torch.ones_like(loaded.ratios))


def test_any_words_are_kept(tmp_path):
    """Line ends, quotes, half surrogate pairs and an empty word among them."""
    words = ["a\nb", '"', "\ud800", "", "\u2028", "é", "e\u0301"]  # the last two are one word
    Aligner.fit([words] * 3, [words] * 3).save(tmp_path)
    assert list(Aligner.load(tmp_path).ensemble.vocabularies[0].words) == words[:-1]


# Damage, by its kinds


def changed(array, at):
    """The array with another value at a place."""
    flat = array.reshape(-1).copy()
    flat.view(np.uint8)[at % flat.nbytes] ^= 0x10
    return flat.reshape(array.shape)


def reordered_words(arrays, side):
    words = json.loads(arrays[f"words.{side}"].tobytes())
    return np.frombuffer(json.dumps([words[1], words[0], *words[2:]], ensure_ascii=False).encode(), dtype=np.uint8)


ARRAYS = ["ratios", "keys", "words.source", "words.target"] + [
    f"0.{model}.{way}.{field}"
    for model in (0, 1)
    for way in ("forward", "backward")
    for field in ("translation", "null", "jumps")
]
OF_ARRAYS = {
    "shorter": lambda array, _: array[:-1],
    "longer": lambda array, _: np.concatenate([array, array[-1:]]),
    "reversed": lambda array, _: array[::-1].copy() if (array != array[::-1]).any() else array[:-2],
    "another type": lambda array, _: array.astype(np.float64),
    "another shape": lambda array, _: array[None],
    "a bit": changed,
    "empty": lambda array, _: array[:0],
}


def refused(folder):
    with pytest.raises(ValueError, match=r"the aligner in .*kept .*train it again") as error:
        Aligner.load(folder)
    return str(error.value)


@pytest.mark.parametrize("damage", OF_ARRAYS)
def test_arrays_that_were_changed(kept, damage):
    """112 files, each with one array that is not what was saved."""
    arrays, metadata = parts(kept)
    assert sorted(arrays) == sorted(ARRAYS)
    for number, name in enumerate(ARRAYS):
        put(kept, arrays | {name: OF_ARRAYS[damage](arrays[name], number)}, metadata)
        assert "digest" in refused(kept)
    put(kept, arrays, metadata)
    Aligner.load(kept)  # as it was


def test_words_in_another_order(kept):
    arrays, metadata = parts(kept)
    for side in ("source", "target"):
        put(kept, arrays | {f"words.{side}": reordered_words(arrays, side)}, metadata)
        assert "digest" in refused(kept)


def test_two_saves_mixed(kept, another, tmp_path):
    """Every array of one in the file of the other, and the metadata."""
    another.save(tmp_path / "another")
    (arrays, metadata), (others, of_others) = parts(kept), parts(tmp_path / "another")
    mixed = [name for name in ARRAYS if arrays[name].tobytes() != others[name].tobytes()]
    assert "keys" in mixed or "words.source" in mixed
    for name in mixed:
        put(kept, arrays | {name: others[name]}, metadata)
        assert "digest" in refused(kept)
    put(kept, arrays, of_others)
    assert "digest" in refused(kept)


def test_arrays_that_are_missing_or_swapped(kept):
    arrays, metadata = parts(kept)
    for name in ARRAYS:
        put(kept, {other: array for other, array in arrays.items() if other != name}, metadata)
        assert "digest" in refused(kept)
    for first, second in pairwise(ARRAYS):
        put(kept, arrays | {first: arrays[second], second: arrays[first]}, metadata)
        assert "digest" in refused(kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "3"}, "has format 3, expected"),
        ({"format": "5"}, "has format 5, expected"),
        ({"models": "1"}, "digest"),
        ({"members": "2"}, "digest"),
        ({"settings": '{"tokenize": true}'}, "digest"),
        ({"sha256": "0" * 64}, "digest"),
        (None, "has format None"),
    ],
)
def test_metadata_of_another_version(kept, change, message):
    arrays, metadata = parts(kept)
    put(kept, arrays, None if change is None else metadata | change)
    assert message in refused(kept)


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.5, 0.9, 0.999])
def test_files_that_are_cut_off(kept, share):
    content = (kept / FILE).read_bytes()
    (kept / FILE).write_bytes(content[: int(share * len(content))])
    refused(kept)


def test_bytes_that_were_changed_anywhere(kept):
    content, generator = (kept / FILE).read_bytes(), random.Random(0)
    for _ in range(100):
        place = generator.randrange(len(content))
        bad = bytearray(content)
        bad[place] ^= 1 << generator.randrange(8)
        (kept / FILE).write_bytes(bytes(bad))
        refused(kept)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("keys", lambda keys: keys[::-1].copy(), "ascending"),
        ("keys", lambda keys: keys + 1000, "pairs of"),
        ("0.0.forward.translation", lambda values: values * 0 + 2, "probabilities"),
        ("0.0.forward.translation", lambda values: values * np.float32(np.nan), "probabilities"),
        ("0.1.backward.null", lambda values: values[:-1], "numbers in float32"),
        ("0.0.backward.jumps", lambda values: values[:-1], "odd number"),
        ("0.0.backward.jumps", lambda values: values * 0, "weights above 0"),
        ("words.source", lambda _: np.frombuffer(b'["das", "das"]', dtype=np.uint8), "different words"),
        ("words.source", lambda _: np.frombuffer(b'{"das": 1}', dtype=np.uint8), "different words"),
        ("words.source", lambda _: np.frombuffer(b"das haus", dtype=np.uint8), "no JSON"),
    ],
)
def test_sizes_and_ranges(kept, name, values, message, monkeypatch):
    """Of files whose digest is right, as another program may write them."""
    arrays, metadata = parts(kept)
    monkeypatch.setattr("pyro_attention.aligner._storage._digest", lambda *_: metadata["sha256"])
    put(kept, arrays | {name: values(arrays[name])}, metadata)
    assert message in refused(kept)


def test_folders_without_an_aligner(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} holds no aligner"):
        Aligner.load(tmp_path)
    (tmp_path / "aligner.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match=f"{tmp_path} holds an aligner of an older version"):
        Aligner.load(tmp_path)


def test_a_kill_while_saving_leaves_the_old_aligner(small, another, kept, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        another.save(kept)
    words = [list(aligner.ensemble.vocabularies[0].words) for aligner in (Aligner.load(kept), small)]
    assert words[0] == words[1]
