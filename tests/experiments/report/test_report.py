"""One declaration of columns and of a report: the cells, the terminal, the page and report.html."""

import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from experiments.report.columns import Column, best_cells, best_row, columns_of, summary_rows
from experiments.report.figures import save
from experiments.report.plots import column_plots
from experiments.report.report import Part, Report, Source
from experiments.report.results import read_results, write_results
from experiments.report.statistics import Difference, Estimate
from pyro_attention.viewer import AlignmentView

SEEDS = [{"accuracy": 0.5, "size": 7.0}, {"accuracy": 0.75, "size": 7.0}]
ACCURACY = Column("accuracy %", "accuracy", 1, 100)


@pytest.mark.parametrize(
    ("column", "runs", "cell"),
    [
        (ACCURACY, SEEDS, "62.5 ± 17.7"),
        (ACCURACY, SEEDS[:1], "50.0"),
        (ACCURACY, [*SEEDS, {"loss": 1.0}], "62.5 ± 17.7"),
        (Column("size", "size", 0, spread=False), SEEDS, "7"),
        (Column("size", "size", 0), SEEDS, "7 ± 0"),
        (Column("loss", "loss"), SEEDS, "-"),
        (Column("loss", "loss", 2), [{"loss": math.nan}], "nan"),
    ],
)
def test_cells(column, runs, cell):
    assert str(column.cell(runs)) == cell


def test_cells_with_errors_and_differences():
    assert str(ACCURACY.cell(SEEDS, error=True)) == "62.5 ± 17.7 (12.5)"
    found = ACCURACY.difference(SEEDS, [{"accuracy": 0.25}, {"accuracy": 0.5}], "soft")
    assert (found.mean, str(found), found.against) == (25, "+25.0 [+25.0, +25.0]", "soft")
    assert str(ACCURACY.difference(SEEDS[:1], SEEDS[1:], "soft")) == "-25.0"
    assert ACCURACY.difference(SEEDS, [{"f1": 0.0}] * 2, "soft", other=Column("F1", "f1", 1, 100)).mean == 62.5
    with pytest.raises(ValueError, match="2 values and 0"):
        ACCURACY.difference(SEEDS, [{"loss": 1.0}] * 2, "soft")


def test_columns_that_no_row_has_are_left_out():
    columns = [ACCURACY, Column("loss", "loss")]
    assert columns_of({"a": SEEDS}, columns) == [ACCURACY]
    rows = summary_rows("row", {"a": SEEDS, "b": [{"loss": 1.0}]}, columns)
    assert [{head: str(cell) for head, cell in row.items()} for row in rows] == [
        {"row": "a", "accuracy %": "62.5 ± 17.7", "loss": "-"}, {"row": "b", "accuracy %": "-", "loss": "1.000"},
    ]  # fmt: skip


@pytest.fixture
def report(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("seed: 1 < 2")
    shown = save(Figure(figsize=(1, 1)), tmp_path / "pictures" / "shown.png")
    kept = save(Figure(figsize=(1, 1)), tmp_path / "out" / "figures" / "kept.png")
    parts = [
        Part(text="First.\n\nThen & there.", rows=[{"row": "a", "accuracy %": "62.5 ± 17.7"}]),
        Part(picture=shown, caption="what is shown"),
        Part("Kept", "about it", picture=kept, published=False),
        Part("Claims", lines="holds: 1 < 2"),
        Part("Details", rows=[{"b": "x", "c": "y"}], terminal=False),
    ]
    return Report("A < B", "a-b", parts)


SOURCE = Source("command", "seeds 0 to 1", "here", {"torch": "2.0"})


def test_one_report_in_three_places(report, tmp_path, capsys):
    report.write(tmp_path / "out", SOURCE)
    printed, html = capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text()
    pictures = [str(tmp_path / name) for name in ("pictures/shown.png", "out/figures/kept.png")]
    assert printed.splitlines() == [
        "", "row  accuracy %", "a    62.5 ± 17.7", "", "First.", "", "Then & there.", "", "Claims:", "holds: 1 < 2", "",
        *pictures, "", str(tmp_path / "out" / "report.html"),
    ]  # fmt: skip
    found, source = read_results(write_results(tmp_path, report, SOURCE))
    assert found.markdown(source, pictures="there").strip().split("\n\n") == [
        "# A < B", "`command`; seeds 0 to 1; here; torch 2.0.", "First.", "Then & there.",
        "| row | accuracy % |\n|---|---|\n| a | 62.5 ± 17.7 |",
        "![what is shown](there/shown.png)", "## Claims", "```text\nholds: 1 < 2\n```", "## Details",
        "| b | c |\n|---|---|\n| x | y |",
    ]  # fmt: skip
    assert "<h1>A &lt; B</h1>" in html
    assert '<th scope="row">a</th><td>62.5 ± 17.7</td>' in html
    # how it was made stands at the end, and the table ahead of its legend
    assert html.index("<table") < html.index("Then &amp; there") < html.index("How this was made")
    assert "<pre>holds: 1 &lt; 2</pre>" in html
    assert "<p>Then &amp; there.</p>" in html
    assert "<pre>seed: 1 &lt; 2</pre>" in html
    assert html.count("data:image/png;base64,") == 2


def test_numbers_are_the_same_after_they_were_published(tmp_path):
    cells = {
        "mean": Estimate(1.5, 0.25, 4, 3, with_error=True), "alone": Estimate(2.0),
        "interval": Estimate(1, low=0, high=2),
        "difference": Difference(-1.0, -2.0, 0.5, 0.2, 4, 1, "accuracy", "soft", "cora", "higher", "items", bold=True),
        "one seed": Difference(-1.0, math.nan, math.nan, metric="accuracy"), "text": "x", "nothing": "-",
        "not finite": Estimate(math.nan, digits=1),
    }  # fmt: skip
    report = Report("A", "a", [Part(rows=[{"row": "r", **cells}])], "found", "graphs: nodes")
    found, source = read_results(write_results(tmp_path, report, SOURCE))
    assert source == SOURCE
    assert (found.summary, found.about, found.title, found.name) == ("found", "graphs: nodes", "A", "a")
    assert repr(found.parts[0].rows) == repr(report.parts[0].rows)


def test_what_the_page_alone_shows(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("seed: 1")
    runs = {"soft": [{"loss": 2.0}, {"loss": 2.5}], "<hard>": [{"loss": 1.0}, {"loss": 1.5}], "none": [{}, {}]}
    loss = Column("loss", "loss", 2, better="lower")
    rows, best = summary_rows("scheme", runs, [loss]), best_cells(runs, [loss])
    view = AlignmentView(source=["das"], target=["<b>"], posterior=torch.ones(1, 1))
    parts = [
        Part(rows=rows, best=best),
        Part("Claims", lines="the same in letters", plots=column_plots(runs, [loss]), views=[view]),
    ]
    Report("A", "a", parts, summary="<hard> is best.").write(tmp_path, SOURCE)
    html, printed = (tmp_path / "report.html").read_text(), capsys.readouterr().out
    assert '<p class="lead">&lt;hard&gt; is best.</p>' in html
    assert html.count("<strong>") == 1
    assert '<th scope="row">&lt;hard&gt;</th><td><strong>1.25 ± 0.35</strong></td>' in html
    plot = html.partition("<svg")[2].partition("</svg>")[0]
    assert plot.count("<circle") == plot.count('class="interval"') == 2  # the row without a number is left out
    assert "1.25 [-1.93, 4.43]" in plot
    assert "the same in letters" not in html.partition("How this was made")[0]
    assert 'id="viewer-0"' in html
    assert "<b>" not in html
    assert "<hard> is best." in printed
    assert "the same in letters" in printed
    assert "svg" not in printed


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0]], ids=["one seed", "no spread"])
def test_plots_without_an_interval_to_speak_of(values):
    (plot,) = column_plots({"a": [{"accuracy": value} for value in values]}, [replace(ACCURACY, better="higher")])
    assert plot.title == "accuracy %, higher is better"
    assert "nan" not in plot.svg().lower()
    assert plot.svg().count("<circle") == 1


def test_best_of_columns():
    runs = {"a": [{"x": 1.0}], "b": [{"x": 2.0}], "c": [{"x": 2.0}], "d": [{}]}
    columns = [Column("low", "x", better="lower"), Column("high", "x", better="higher"), Column("either", "x")]
    assert best_cells(runs, columns) == {(0, "low"), (1, "high")}
    assert best_row({"d": [{}]}, columns[0]) is None
