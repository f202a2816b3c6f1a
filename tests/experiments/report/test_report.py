"""Statistics, columns and reports: numbers by hand and SciPy, the terminal, the page, report.md and the results."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.report.figures import save
from experiments.report.pages import PAGE, Finding, findings, page_of
from experiments.report.report import (
    Part,
    Report,
    Source,
    as_table,
    markdown_table,
    read_results,
    results_in,
    write_results,
)
from experiments.report.statistics import (
    Column,
    Difference,
    Estimate,
    columns_of,
    paired_difference,
    summarize,
    summary_rows,
)

# statistics


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([82.0, 83.0, 84.0, 85.0], (83.5, math.sqrt(5 / 3), math.sqrt(5 / 12), 4)),
        ([1.0], (1.0, math.nan, math.nan, 1)),
    ],
)
def test_summary_by_hand(values, expected):
    found = summarize(values)
    shown = found.mean, found.spread, found.standard_error, found.count
    assert shown == pytest.approx(expected, nan_ok=True)


def test_paired_difference_is_that_of_the_paired_t_test():
    generator = np.random.default_rng(0)
    baseline = generator.normal(size=12)
    values = baseline + 0.3 + 0.2 * generator.normal(size=12)
    found = paired_difference(values.tolist(), baseline.tolist())
    test = stats.ttest_rel(values, baseline)
    assert found.mean == pytest.approx(np.mean(values - baseline))
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p_value == pytest.approx(test.pvalue)
    with pytest.raises(ValueError, match="2 values and 1"):
        paired_difference([2.0, 1.0], [1.0])


@pytest.mark.parametrize(
    ("values", "baseline", "expected"),
    [
        ([3.0, 4.0], [1.0, 2.0], (2.0, 2.0, 2.0, 0.0)),
        ([2.0], [1.0], (1.0, math.nan, math.nan, math.nan)),  # one seed has no interval
    ],
)
def test_identical_differences(values, baseline, expected):
    found = paired_difference(values, baseline)
    shown = found.mean, found.low, found.high, found.p_value
    assert shown == pytest.approx(expected, nan_ok=True, rel=0, abs=0)


# columns

SEEDS = [{"accuracy": 0.5, "size": 7.0}, {"accuracy": 0.75, "size": 7.0}]
ACCURACY = Column("accuracy %", "accuracy", 1, 100)


@pytest.mark.parametrize(
    ("column", "runs", "cell"),
    [
        (ACCURACY, [*SEEDS, {"loss": 1.0}], "62.5 ± 17.7"),
        (ACCURACY, SEEDS[:1], "50.0"),
        (Column("size", "size", 0, spread=False), SEEDS, "7"),
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
    assert ACCURACY.difference(SEEDS, [{"f1": 0.0}] * 2, "soft", other=Column("F1", "f1", 1, 100)).mean == 62.5
    with pytest.raises(ValueError, match="no seed has accuracy and, in the row 'soft', accuracy"):
        ACCURACY.difference(SEEDS, [{"loss": 1.0}] * 2, "soft")


@pytest.mark.parametrize("other", [None, Column("F1", "f1", 1, 100)])
def test_differences_pair_the_same_seeds(other):
    """Each row lacks the metric at another seed, so as many values of both are of other seeds."""
    name = "accuracy" if other is None else "f1"
    row = [{}, {"accuracy": 0.5}, {"accuracy": 0.75}, {"accuracy": 0.9}]
    baseline = [{name: 0.1}, {name: 0.25}, {}, {name: 0.6}]
    found = ACCURACY.difference(row, baseline, "soft", other=other)
    expected = paired_difference([50.0, 90.0], [25.0, 60.0])
    assert (found.mean, found.low, found.high, found.count) == pytest.approx(
        (expected.mean, expected.low, expected.high, 2)
    )


def test_tables():
    columns = [ACCURACY, Column("loss", "loss")]
    assert columns_of({"a": SEEDS}, columns) == [ACCURACY]
    rows = summary_rows("row", {"a": SEEDS, "b": [{"loss": 1.0}]}, columns)
    assert as_table(rows).splitlines() == [
        "row   accuracy %   loss", "a    62.5 ± 17.7      -", "b              -  1.000",
    ]  # fmt: skip
    assert markdown_table([{"b": 1, "a": "x"}, {"a": "y", "b": 2}]).splitlines()[2:] == ["| 1 | x |", "| 2 | y |"]


# reports

SOURCE = Source("python -m a.script", "seeds 0 to 1", "here", {"torch": "2.0"})


def test_one_report_in_three_places(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    shown = save(Figure(figsize=(1, 1)), tmp_path / "pictures" / "shown.png")
    kept = save(Figure(figsize=(1, 1)), out / "figures" / "kept.png")
    runs = {"soft": [{"loss": 2.0}, {"loss": 2.5}], "<hard>": [{"loss": 1.0}, {"loss": 1.5}], "none": [{}, {}]}
    loss = Column("loss", "loss", 2, better="lower")
    parts = [
        Part(text="First.\n\nThen & there.", rows=summary_rows("row", runs, [loss])),
        Part(picture=shown, caption="what is shown"),
        Part("Kept", "about it", picture=kept, published=False),
        Part("Claims", lines="holds: 1 < 2"),
        Part("Details", rows=[{"b": "x", "c": "y"}], terminal=False),
    ]
    report = Report("A < B", "a-b", parts, summary="<hard> is best.")
    report.write(out, SOURCE)
    printed, page = capsys.readouterr().out, (out / "report.md").read_text()
    table = ["row            loss", "soft    2.25 ± 0.35", "<hard>  1.25 ± 0.35", "none              -"]
    assert printed.splitlines() == [
        "", *table, "", "First.", "", "Then & there.", "", "Claims:", "holds: 1 < 2", "", "<hard> is best.", "",
        str(shown), str(kept), "", str(out / "report.md"),
    ]  # fmt: skip
    found, _ = read_results(write_results(tmp_path, report, SOURCE))
    rows = "| row | loss |\n|---|---|\n| soft | 2.25 ± 0.35 |\n| &lt;hard> | 1.25 ± 0.35 |\n| none | - |"
    assert found.markdown(SOURCE, pictures="there").strip().split("\n\n") == [
        "# A < B", "`python -m a.script`; seeds 0 to 1; here; torch 2.0.", "<hard> is best.", "First.", "Then & there.",
        rows, "![what is shown](there/shown.png)", "## Claims", "```text\nholds: 1 < 2\n```", "## Details",
        "| b | c |\n|---|---|\n| x | y |",
    ]  # fmt: skip
    # the page in the folder has what is not published, too
    assert "## Kept\n\nabout it\n\n![Kept](" in page
    assert page.startswith("# A < B\n\n`python -m a.script`")


def test_numbers_are_the_same_after_they_were_published(tmp_path):
    cells = {
        "mean": Estimate(1.5, 0.25, 4, 3, with_error=True), "alone": Estimate(2.0),
        "interval": Estimate(1, low=0, high=2), "seeds": Estimate(1.5, values=(1.0, math.nan, 2.0)),
        "difference": Difference(-1.0, -2.0, 0.5, 0.2, 4, 1, "accuracy", "soft", "cora", "higher", "items", bold=True),
        "one seed": Difference(-1.0, math.nan, math.nan, metric="accuracy"), "text": "x", "nothing": "-",
        "not finite": Estimate(math.nan, digits=1),
    }  # fmt: skip
    report = Report("A", "a", [Part(rows=[{"row": "r", **cells}])], "found", "graphs: nodes")
    found, source = read_results(write_results(tmp_path, report, SOURCE))
    assert source == SOURCE
    assert (found.summary, found.about, found.title, found.name) == ("found", "graphs: nodes", "A", "a")
    assert repr(found.parts[0].rows) == repr(report.parts[0].rows)


def test_a_page_of_the_site_folds_a_long_text():
    report = Report("A", "a", [Part(text="word " * 101, rows=[{"row": "r"}]), Part(text="short")])
    page = report.markdown(SOURCE, pictures="", fold=True)
    assert page.count("<details>") == 1
    assert page.index("word") < page.index("</details>") < page.index("| row |") < page.index("short")
    assert "<details>" not in report.markdown(SOURCE, pictures="")


SENTENCE = """A <script>canary()</script> & <img src=x onerror="canary()"> </pre></title><!-- end a --> | sat"""


def test_markup_in_a_table_shows_as_text():
    for line in markdown_table([{SENTENCE: SENTENCE, "two\nlines": "a\nb"}]).split("\n"):
        assert "<" not in line
        assert line.replace(r"\|", "").count("|") == 3


# where it helps

FOUND = Difference(2.0, 1.9, 2.1, count=3, metric="accuracy %", against="soft", better="higher")


def test_the_page_is_that_of_the_results_which_name_what_made_them():
    assert PAGE.read_text() == page_of(findings()), "run python -m experiments.pages"
    for report, source in results_in(PAGE.parents[1] / "experiments" / "results"):
        assert source.command.startswith("python -m experiments."), report.name
        assert source.versions["torch"], report.name
        assert source.hardware, report.name
        for part in report.parts:
            assert part.picture is None or part.picture.is_file(), f"{report.name}: {part.picture}"


@pytest.mark.parametrize(
    ("better", "interval", "verdict"),
    [
        ("higher", (1.9, 2.1), "better"),
        ("higher", (-2.1, -1.9), "worse"),
        ("lower", (1.9, 2.1), "worse"),
        ("higher", (-1.44, 0.0), "no clear difference"),
    ],
)
def test_what_is_better_depends_on_the_metric(better, interval, verdict):
    low, high = interval
    found = replace(FOUND, mean=(low + high) / 2, low=low, high=high, better=better)
    assert Finding("graphs: nodes", "bam1", "WC", found, 1).verdict == verdict


@pytest.mark.parametrize("tests", [1, 10])
def test_intervals_over_seeds_are_corrected_for_their_number_and_for_rounding(tests):
    values, others = np.random.default_rng(tests).normal(loc=[[3.0], [0.0]], size=(2, 5))
    found = replace(paired_difference(values.tolist(), others.tolist()), digits=6)
    low, high = stats.t(4, loc=np.mean(values - others), scale=stats.sem(values - others)).ppf(
        [0.025 / tests, 1 - 0.025 / tests]
    )
    assert Finding("", "", "WC", found, tests).interval == pytest.approx((low, high), abs=1e-5)
    assert Finding("", "", "WC", replace(found, over="items"), tests).interval == (found.low, found.high)
    # true intervals lie inside of those that are made of rounded numbers
    rounded = replace(found, mean=round(found.mean, 1), low=round(found.low, 1), high=round(found.high, 1), digits=1)
    wide = Finding("", "", "WC", rounded, tests).interval
    assert wide[0] <= low
    assert wide[1] >= high


def test_what_counts(tmp_path):
    def publish(name, *rows, about="graphs: nodes", labels=1):
        write_results(tmp_path, Report("A title", name, [Part(rows=rows, labels=labels)], about=about), SOURCE)

    turned = replace(FOUND, against="WC", mean=-2.0, low=-2.1, high=-1.9)
    publish("bam1", {"attention": "soft", "accuracy %": ""}, {"attention": "WC", "accuracy %": FOUND})
    publish("again", {"row": "WC", "accuracy %": replace(FOUND, bold=not FOUND.bold)})  # the same runs, fewer tests
    publish("claims", {"claim": "x", "difference": "soft - WC", "number": turned}, labels=2)
    finer = replace(FOUND, mean=2.004, low=1.896, high=2.096, digits=3)  # of a claim below the table
    publish("both", {"row": "WC", "accuracy %": FOUND}, {"difference": "WC - soft", "number": finer})
    publish("other", {"row": "MC dropout", "accuracy %": FOUND}, about="text: GLUE")
    publish("entropy", {"row": "WC", "entropy": replace(FOUND, better=None)}, about="text: GLUE")
    publish("one-seed", {"row": "WC", "x": replace(FOUND, low=float("nan"), high=float("nan"))})
    publish("speed", {"row": "WC", "x": FOUND}, about="")
    found = findings(tmp_path)
    # soft attention minus another row is turned round, and then is the same once more
    assert [(one.task, one.row, one.difference.against, one.verdict) for one in found] == [
        ("graphs: nodes", "WC", "soft", "better")
    ]
    page = page_of(found)
    assert "| graphs: nodes | 1 | 0 | 0 | better: WC minus soft: accuracy % +2.00 [+1.90, +2.10]" in page
    assert "<details>" in page
