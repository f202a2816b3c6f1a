"""The tutorials run, and their figures can be read."""

import runpy
from pathlib import Path

import matplotlib
import pytest

from tests.pictures import faults

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.py"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a page of the site shows them, which building it checks
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_figures_of_a_tutorial_can_be_read(path, tmp_path, monkeypatch):
    matplotlib.use("agg")
    from matplotlib import pyplot

    if "transformers" in path.read_text():
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    pyplot.close("all")
    try:
        runpy.run_path(str(path), run_name="tutorial")
        figures = {number: pyplot.figure(number) for number in pyplot.get_fignums()}
        problems = {number: faults(figure) for number, figure in figures.items()}
        assert figures
        assert problems == {number: [] for number in figures}
    finally:
        pyplot.close("all")
