"""The page that says where Bayesian attention helps: verdicts out of intervals, and a page that is kept true."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.report.report import Part, Report, Source
from experiments.report.results import results_in, write_results
from experiments.report.statistics import Difference, paired_difference
from experiments.report.where_it_helps import PAGE, Finding, findings, page_of

FOUND = Difference(2.0, 1.9, 2.1, count=3, metric="accuracy %", against="soft", better="higher")
SOURCE = Source("python -m a.script", "seeds 0 to 2", "2 CPU cores", {"torch": "2.0"})


def publish(folder: Path, name: str, *rows: dict[str, object], about: str = "graphs: nodes", labels: int = 1) -> None:
    write_results(folder, Report("A title", name, [Part(rows=rows, labels=labels)], about=about), SOURCE)


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text() == page_of(findings()), "run python -m experiments.pages"


@pytest.mark.parametrize(
    ("better", "interval", "verdict"),
    [
        ("higher", (1.9, 2.1), "better"),
        ("higher", (-2.1, -1.9), "worse"),
        ("lower", (1.9, 2.1), "worse"),
        ("lower", (-2.1, -1.9), "better"),
        ("higher", (-1.0, 5.0), "cannot be told"),
        ("higher", (-1.44, 0.0), "cannot be told"),
        ("higher", (0.0, 0.0), "cannot be told"),
    ],
)
def test_what_is_better_depends_on_the_metric(better: str, interval: tuple[float, float], verdict: str) -> None:
    low, high = interval
    found = replace(FOUND, mean=(low + high) / 2, low=low, high=high, better=better)
    assert Finding("graphs: nodes", "bam1", "WC", found, 1).verdict == verdict


@pytest.mark.parametrize("tests", [1, 2, 10])
def test_intervals_over_seeds_are_corrected_for_their_number(tests: int) -> None:
    values, others = np.random.default_rng(tests).normal(loc=[[3.0], [0.0]], size=(2, 5))
    found = replace(paired_difference(values.tolist(), others.tolist()), digits=6)
    low, high = stats.t(4, loc=np.mean(values - others), scale=stats.sem(values - others)).ppf(
        [0.025 / tests, 1 - 0.025 / tests]
    )
    assert Finding("", "", "WC", found, tests).interval == pytest.approx((low, high), abs=1e-5)
    items = replace(found, over="items")
    assert Finding("", "", "WC", items, tests).interval == (found.low, found.high)


def test_a_published_digit_widens_the_interval() -> None:
    """True intervals lie inside of those that are made of rounded numbers."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        true = paired_difference(generator.normal(1, 1, 4).tolist(), [0.0] * 4)
        rounded = replace(true, mean=round(true.mean, 1), low=round(true.low, 1), high=round(true.high, 1), digits=1)
        (low, high), (inner, outer) = (
            Finding("", "", "", one, 3).interval for one in (rounded, replace(true, digits=9))
        )
        assert low <= inner
        assert high >= outer


def test_what_counts(tmp_path: Path) -> None:
    turned = replace(FOUND, against="WC", mean=-2.0, low=-2.1, high=-1.9)
    publish(tmp_path, "bam1", {"attention": "soft", "accuracy %": ""}, {"attention": "WC", "accuracy %": FOUND})
    publish(tmp_path, "again", {"row": "WC", "accuracy %": FOUND})  # the same runs
    publish(tmp_path, "claims", {"claim": "x", "difference": "soft - WC", "number": turned}, labels=2)
    publish(tmp_path, "other", {"row": "MC dropout", "accuracy %": FOUND}, about="text: GLUE")
    publish(tmp_path, "entropy", {"row": "WC", "entropy": replace(FOUND, better=None)}, about="text: GLUE")
    publish(tmp_path, "one-seed", {"row": "WC", "x": replace(FOUND, low=float("nan"), high=float("nan"))})
    publish(tmp_path, "speed", {"row": "WC", "x": FOUND}, about="")
    found = findings(tmp_path)
    # soft attention minus another row is turned round, and then is the same once more
    assert [(one.task, one.row, one.difference.against, one.verdict) for one in found] == [
        ("graphs: nodes", "WC", "soft", "better")
    ]
    page = page_of(found)
    assert "| graphs: nodes | 1 | 0 | 0 | better: WC minus soft: accuracy % +2.00 [+1.90, +2.10]" in page
    assert "<details>" in page


def test_results_name_what_made_them() -> None:
    for report, source in results_in(PAGE.parents[1] / "experiments" / "results"):
        assert source.command.startswith("python -m experiments."), report.name
        assert source.versions["torch"], report.name
        assert source.hardware, report.name
        for part in report.parts:
            assert part.picture is None or part.picture.is_file(), f"{report.name}: {part.picture}"
