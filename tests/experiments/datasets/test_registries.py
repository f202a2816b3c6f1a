"""A data set is what its reader registers; the names that options know are those of the readers."""

import subprocess
import sys
from typing import get_args

import pytest

from experiments.datasets.graphs.load import GRAPHS, load_graph
from experiments.datasets.images.captions import CAPTIONS, load_captions
from experiments.datasets.names import CaptionsName, GraphName, ParallelName, PhotoQuestionsName
from experiments.datasets.questions.load import QUESTIONS, PhotographOptions, load_photo_questions
from experiments.datasets.text.masked_text import ENGLISH
from experiments.datasets.text.parallel import PARALLEL, ParallelText, load_parallel
from experiments.datasets.text.parallel_text import ParallelReader

KINDS = {
    "graphs": (GRAPHS, GraphName),
    "captions": (CAPTIONS, CaptionsName),
    "parallel": (PARALLEL, ParallelName),
    "questions": (QUESTIONS, PhotoQuestionsName),
}


@pytest.mark.parametrize(("registry", "names"), KINDS.values(), ids=KINDS)
def test_options_name_what_is_registered(registry, names):
    assert set(get_args(names)) == set(registry)


def test_english_texts_are_registered():
    assert {name for names in ENGLISH.values() for name in names} <= set(PARALLEL)


def test_names_are_light():
    """They are imported where --help and typing errors are answered."""
    code = "import sys, experiments.datasets.names; print({'torch', 'numpy', 'pyro'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.fixture
def register(monkeypatch):
    """Registers a reader for one test."""

    def register(registry, name, reader):
        monkeypatch.setitem(registry, name, reader)

    return register


@pytest.mark.parametrize(
    ("registry", "load", "arguments", "options", "given"),
    [
        (GRAPHS, load_graph, (), {"split_seed": 3}, (3,)),
        (CAPTIONS, load_captions, ("val",), {"skip": True}, ("val", True)),
        (QUESTIONS, load_photo_questions, (PhotographOptions(size=32),), {}, (PhotographOptions(size=32),)),
    ],
    ids=["graphs", "captions", "questions"],
)
def test_new_readers_are_used_by_name(register, tmp_path, registry, load, arguments, options, given):
    register(registry, "mine", lambda *found: found)
    assert load("mine", *arguments, data_root=tmp_path, **options) == (tmp_path, *given)


def test_a_new_parallel_text_brings_its_languages(register, tmp_path):
    def read(root, split, languages, rules):
        return ParallelText([f"{root.name} {split}"], [f"{rules.lowercase}"], "mine", languages)

    register(PARALLEL, "mine", ParallelReader(read, ("cs", "en")))
    text = load_parallel("mine", "val", source="cs", data_root=tmp_path, lowercase=True)
    assert (text.source, text.target, text.languages) == ([f"{tmp_path.name} val"], ["True"], ("cs", "en"))
    with pytest.raises(ValueError, match=r"no language is named 'de'; expected two different ones of .* mine: cs, en"):
        load_parallel("mine", "val", data_root=tmp_path)
