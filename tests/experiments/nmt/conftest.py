"""What tests of aligned files share."""

import pytest

from tests.experiments.nmt.tiny_text import command_line


@pytest.fixture
def text(translation_run):
    """Folder of the text of ``translation_run``."""
    return translation_run.parent / "text"


@pytest.fixture
def align(translation_run, text, tmp_path):
    """Align the test text; the exit code."""

    def align(*options, run=translation_run, source=text / "test.de", target=text / "test.en", out=tmp_path / "out"):
        return command_line("align", run, source, target, "--out", out, *options)

    return align
