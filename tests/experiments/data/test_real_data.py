"""The published files, where they are: how many of everything there are, and splits that share nothing."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from experiments.data.graphs.load import load_graph
from experiments.data.images.captions import load_captions
from experiments.data.images.region_options import RegionOptions
from experiments.data.questions import load as questions
from experiments.data.storage import CHECKSUMS
from experiments.data.text.glue import load_glue
from experiments.data.text.headlines import load_headlines
from experiments.data.text.parallel import load_parallel
from experiments.data.text.squad import load_squad

REAL = Path(os.environ.get("PYRO_ATTENTION_DATA", "."))
pytestmark = pytest.mark.skipif("PYRO_ATTENTION_DATA" not in os.environ, reason="PYRO_ATTENTION_DATA is not set")


@pytest.mark.parametrize(
    ("name", "sizes", "split"),
    [
        ("cora", (2708, 10556, 1433, 7), (140, 500, 1000)),
        ("citeseer", (3327, 9104, 3703, 6), (120, 500, 1000)),
        ("actor", (7600, 53318, 932, 5), (3648, 2432, 1520)),
        ("texas", (183, 558, 1703, 5), (87, 59, 37)),
        ("chameleon_filtered", (890, 17708, 2325, 5), (409, 287, 194)),
        ("squirrel_filtered", (2223, 93996, 2089, 5), (1053, 718, 452)),
        ("minesweeper", (10000, 78804, 7, 2), (5000, 2500, 2500)),
    ],
)
def test_graphs(name, sizes, split):
    graph = load_graph(name)
    assert (graph.num_nodes, graph.edge_index.shape[1], graph.features.shape[1], graph.num_classes) == sizes
    assert (int(graph.train_mask.sum()), int(graph.val_mask.sum()), int(graph.test_mask.sum())) == split


@pytest.mark.parametrize(
    ("name", "languages", "sizes"),
    [
        ("multi30k", ("de", "en"), (29000, 1014, 1000)),
        ("ted", ("de", "en"), (17266, 1821, 5461)),
        pytest.param("tatoeba", ("de", "en"), (165168, 2000, 2029), marks=pytest.mark.slow),
        ("europarl_de_en", ("de", "en"), (19263, 500, 100)),
        ("hansards_fr_en", ("fr", "en"), (140000, 2000, 522)),
    ],
)
def test_parallel_text(name, languages, sizes):
    texts = [load_parallel(name, split, source=languages[0], target=languages[1]) for split in ("train", "val", "test")]
    assert tuple(map(len, texts)) == sizes
    if name in ("ted", "tatoeba"):
        for side in ("source", "target"):
            sets = [set(getattr(text, side)) for text in texts]
            assert not sets[0] & (sets[1] | sets[2])
    if name == "multi30k":
        for path in (REAL / "multi30k" / "task1").iterdir():
            assert CHECKSUMS[path.name] == sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("load", "sizes"),
    [
        (lambda: load_glue("rte"), (2241, 249, 277)),
        (lambda: load_glue("mrpc"), (3669, 407, 1725)),
        (lambda: load_glue("cola"), (7696, 855, 1043)),
        (lambda: load_glue("sst2"), (67349, 872, 1821)),
        (lambda: load_glue("stsb"), (5749, 1500, 1379)),
        (load_squad, None),
        (load_headlines, None),
        (lambda: {split: load_captions("flickr8k", split) for split in ("train", "val", "test")}, (6000, 1000, 1000)),
    ],
)
def test_other_text(load, sizes):
    found = tuple(map(len, load().values()))
    assert found == sizes or (sizes is None and min(found) > 100)


@pytest.mark.parametrize(
    ("name", "asked", "photographs"),
    [("easy_vqa", (38575, 9673), (4000, 1000)), ("daquar", (6795, 5673), (794, 653))],
)
def test_questions(tmp_path, monkeypatch, name, asked, photographs):
    monkeypatch.setattr(questions, "encoded", lambda train, test, *options: (train, test))
    found = questions.load_photo_questions(name, RegionOptions(size=64, cache=tmp_path))
    assert tuple(len(part.entries) for part in found) == asked
    assert tuple(len(part.pixels) for part in found) == photographs
