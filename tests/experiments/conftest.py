"""Tiny trained networks that many tests look at, and none changes."""

from dataclasses import replace

import pytest

from experiments.data.text import masked_text, parallel
from experiments.data.text.parallel import toy_translation
from experiments.nmt.config import TranslationConfig
from tests.experiments.nmt.tiny_text import TINY, run, write_text
from tests.pictures import readable_pictures  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def tiny_corpus():
    """Let the generated corpus have few sentences."""
    texts = toy_translation(train=24, val=8, test=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "toy_corpus", lambda: texts)
        masked_text.english_side.cache_clear()
        yield
    masked_text.english_side.cache_clear()


@pytest.fixture(scope="session")
def translation_run(tmp_path_factory):
    """A finished run of categorical_enum from de to en; its text is in the folder "text" beside it."""
    folder = tmp_path_factory.mktemp("translation")
    config = TranslationConfig(**TINY, text=write_text(folder / "text"), out=folder / "run")
    run(config)
    return folder / "run"


@pytest.fixture(scope="session")
def reverse_run(translation_run):
    """A finished run of soft attention from en to de on the same text."""
    folder = translation_run.parent
    config = TranslationConfig(**TINY, text=folder / "text", out=folder / "reverse", guide="soft")
    run(replace(config, source="en", target="de", max_epochs=1))
    return folder / "reverse"
