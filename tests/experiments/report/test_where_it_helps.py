"""The page that says where Bayesian attention helps: verdicts out of intervals, and a page that is kept true."""

from pathlib import Path

import numpy as np
import pytest
from experiments.report.comparisons import comparisons, sections
from experiments.report.config import WhereItHelps
from scipy import stats

from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.report.statistics import paired_difference
from experiments.report.tables import markdown_table
from experiments.report.where_it_helps import page_of, run


def section(name: str, *parts: str, title: str = "A title", seeds: str = "seeds 0 to 2") -> str:
    source = f"`python -m a.script`; {seeds}; 2 CPU cores."
    return "\n\n".join([f"<!-- begin {name} -->\n## {title}", source, *parts]) + f"\n<!-- end {name} -->\n"


def table(head: str, *rows: str) -> str:
    dashes = "|---" * (head.count("|") - 1) + "|"
    return "\n".join([head, dashes, *rows])


def answers(metric: str, cell: str, name: str = "WC") -> str:
    head = f"| row | {metric} | {metric}: difference | compared with | paper |"
    return table(head, "| soft | 1 ± 1 |  |  |  |", f"| {name} | 2 ± 1 | {cell} | soft | 3 |")


def rows_of(page: str) -> list[list[str]]:
    """Cells of the rows of all tables, without the heads."""
    lines = [line for line in page.splitlines() if line.startswith("|") and "|---" not in line]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if not line.startswith("| task |")]


def test_the_page_is_that_of_the_results() -> None:
    run(WhereItHelps(check=True))


@pytest.mark.parametrize(
    ("metric", "cell", "verdict", "heading"),
    [
        ("accuracy %", "+2.00 [+1.90, +2.10]", "better", "Is it more accurate?"),
        ("accuracy %", "-2.00 [-2.10, -1.90]", "worse", "Is it more accurate?"),
        ("accuracy %, noise .5", "+2.00 [-1.90, +5.90]", "cannot be told", "Is it more robust to noise?"),
        ("accuracy %, noise .5", "-0.72 [-1.44, +0.00]", "cannot be told", "Is it more robust to noise?"),
        ("accuracy %", "+0.00 [+0.00, +0.00]", "cannot be told", "Is it more accurate?"),
        ("NLL", "+2.00 [+1.90, +2.10]", "worse", "Are its probabilities better?"),
        ("NLL, scaled", "**-2.00 [-2.10, -1.90]**", "better", "Are its probabilities better?"),
        ("perplexity", "+2.00 [+1.90, +2.10]", "worse", "Is it more accurate?"),
        ("AER", "+2.00 [+1.90, +2.10]", "worse", "Does it align better?"),
        ("PAvPU", "+2.00 [+1.90, +2.10]", "better", "Does it know what it does not know?"),
    ],
)
def test_what_is_better_depends_on_the_metric(metric: str, cell: str, verdict: str, heading: str) -> None:
    page = page_of(section("vqa-digits", answers(metric, cell)))
    ((*_, found, link),) = rows_of(page)
    assert (found, link) == (verdict, "[vqa-digits](all_results.md#a-title)")
    assert "| task |" in page.split(f"## {heading}")[1].split("\n## ")[0]
    counts = ", ".join(f"{int(verdict == name)} {name}" for name in ("better", "worse", "cannot be told"))
    assert f"**Pictures.** Comparisons: 1, of which {counts}." in page
    assert "**Graphs.** Comparisons: 0, " in page


@pytest.mark.parametrize("count", [1, 2, 10])
def test_intervals_are_corrected_for_their_number(count: int) -> None:
    values, others = np.random.default_rng(count).normal(loc=[[3.0], [0.0]], size=(2, 5))
    cell = paired_difference(values.tolist(), others.tolist()).text()
    rows = [{"attention": f"{name}", "Cora accuracy %": "1", "minus soft (Cora)": cell} for name in ["WC"] * count]
    (first, *_) = rows_of(page_of(section("bam1", markdown_table(rows), seeds="seeds 0 to 4")))
    low, high = stats.t(4, loc=np.mean(values - others), scale=stats.sem(values - others)).ppf(
        [0.025 / count, 1 - 0.025 / count]
    )
    brackets, found = first[6].rsplit(" for ", 1)
    assert int(found) == count
    ours = [float(number) for number in brackets.strip("[]").split(", ")]
    # the page's numbers are rounded, and the interval is widened by as much
    widest = 0.015 * (1 + stats.t(4).ppf(1 - 0.025 / count) / stats.t(4).ppf(0.975))
    assert low - widest <= ours[0] <= low + 0.01
    assert high - 0.01 <= ours[1] <= high + widest


def test_columns_of_all_kinds_are_read() -> None:
    page = section(
        "heterophilous",
        table(
            "| attention | Chameleon (filtered) accuracy % | difference (Chameleon (filtered)) | other |",
            "| soft | 1 |  | +1 |",
            "| WC doubly | 1 | +1.00 [-1.00, +3.00] to WC | +1 |",
        ),
    )
    page += section(
        "label_rate-texas",
        table("| labels per class | attention | accuracy minus soft |", "| 5 | WC | -1.00 [-2.00, +0.00] |"),
        title="Labels",
    )
    page += section(
        "glue-model",
        table("| row | head |", "| soft | 1 |"),
        "### RTE",
        table(
            "| row | accuracy % | minus soft, by seeds | minus soft, by examples |",
            "| MC dropout | 1 | +1.00 [-1.00, +3.00] | +1.00 [-1.00, +3.00] |",
            "| LC | 1 | +1.00 [-1.00, +3.00] | +1.00 [-1.00, +3.00] |",
        ),
        title="GLUE",
    )
    page += section(
        "alignment-europarl",
        "### Against the baselines: grow-diag-final-and",
        table("| aligner | AER | - IBM 2 |", "| marginal | 25.0 [20.0, 30.0] | -4.0 [-6.0, -2.0] |"),
        title="Aligners",
    )
    page += section(
        "vqa-digits",
        "```\ncannot be told: WC loses less accuracy than soft to noise on the regions\n"
        "    soft - WC, noise .5: -0.2000 [-2.6000, +2.2000]\n```",
        title="Questions",
    )
    found = {(*row[:4], row[4].partition(" (")[0], row[5], row[7], row[8]) for row in rows_of(page_of(page))}
    nodes = "node classification"
    assert found == {
        (nodes, "Chameleon (filtered)", "WC doubly", "WC", "accuracy %", "+1.00 [-1.00, +3.00]", "3", "cannot be told"),
        (nodes, "texas, 5 labels per class", "WC", "soft", "accuracy", "-1.00 [-2.00, +0.00]", "3", "cannot be told"),
        ("GLUE", "RTE", "LC", "soft", "accuracy %", "+1.00 [-1.00, +3.00]", "3", "cannot be told"),
        ("word alignment", "europarl", "marginal", "IBM 2", "AER, grow-diag-final-and", "-4.0 [-6.0, -2.0]", "-",
         "better"),
        ("questions about pictures", "digits, noise .5", "WC", "soft", "accuracy lost to noise",
         "+0.2000 [-2.2000, +2.6000]", "3", "cannot be told"),
    }  # fmt: skip


def test_what_is_left_out_is_said() -> None:
    page = section("vqa-digits", answers("accuracy %", "+1.00"), seeds="1 seed")
    page += section("vqa-daquar", answers("accuracy %", "+1.00 [+0.50, +1.50]", "question only"), title="Rooms")
    page += section("captioning-flickr8k", table("| scheme | perplexity |", "| soft | 1 |"), title="Captions")
    page += section("captions-flickr8k", answers("relative entropy", "-1.00 [-1.50, -0.50]"), title="More captions")
    page += section("benchmarks", table("| contestant | ratio |", "| soft | 1 |"), title="Benchmarks")
    left_out = page_of(page).split("## Left out\n")[1]
    assert rows_of(page_of(page)) == []
    for line in (
        "* Section vqa-digits: differences 1 without an interval.",
        "* Section vqa-daquar: differences 1 between rows that have the same kind of attention.",
        "* Section captioning-flickr8k has no differences.",
        "* Section captions-flickr8k: differences 1 in relative entropy, of which neither more nor less is better.",
    ):
        assert line in left_out.splitlines()
    assert "benchmarks" not in left_out


def test_of_two_sections_with_one_title_the_newer_one_counts() -> None:
    older, newer = (answers("accuracy %", f"{mean} [-9.00, +9.00]") for mean in ("+1.00", "+2.00"))
    page = section("vqa-digits", older) + section("vqa-easy_vqa", older, title="B") + section("vqa-digits-2", newer)
    found = {row[1]: (row[5], row[9]) for row in rows_of(page_of(page))}
    assert found == {
        "easy_vqa": ("+1.00 [-9.00, +9.00]", "[vqa-easy_vqa](all_results.md#b)"),
        "digits-2": ("+2.00 [-9.00, +9.00]", "[vqa-digits-2](all_results.md#a-title-1)"),
    }
    assert [one.metric for one in comparisons(sections(page)[-1])] == ["accuracy %"]


GOOD = answers("accuracy %", "+1.00 [-1.00, +3.00]")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (section("vqa-digits", GOOD.replace(" soft | 3 |", " soft |")), r"line 9 has 4 cells, expected 5"),
        (section("vqa-digits", GOOD.removesuffix("|")), r"line 9 begins like one of a table"),
        (section("vqa-digits", GOOD.replace("|---|---|---|---|---|\n", "")), r"line 6 .* without a line of dashes"),
        (section("vqa-digits", GOOD.replace("+1.00", "1.00")), r"line 9: '1.00 \[.*' is no difference, in the column"),
        (section("vqa-digits", GOOD.replace(": difference", " gain")), r"column that is not known, 'accuracy % gain'"),
        (section("vqa-digits", GOOD.replace("accuracy %", "surprise")), r"metric 'surprise': .* add it in experiments"),
        (section("vqa-digits", GOOD.replace("WC", "WX")), r"'WX' against 'soft' .* 'WX' is no kind of attention"),
        (section("weather", GOOD), "section weather has differences, and no task is known"),
        (section("vqa-digits", GOOD, seeds="some"), "section vqa-digits has intervals over seeds, and does not say"),
        (section("vqa-digits", GOOD, seeds="1 seed"), "section vqa-digits has intervals over seeds, and does not say"),
        (section("vqa-digits", GOOD).replace("<!-- end", "<!-- close"), "section vqa-digits has no line '<!-- end"),
    ],
)
def test_what_is_not_understood_is_named(page: str, message: str, tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(page)
    with pytest.raises(UserError, match=f"RESULTS.md: .*{message}"):
        run(WhereItHelps(results=results, out=tmp_path / "page.md"))
    assert not (tmp_path / "page.md").exists()


def test_the_check_fails_where_the_page_is_older(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out = tmp_path / "RESULTS.md", tmp_path / "page.md"
    results.write_text(section("vqa-digits", GOOD))

    def script(*more: str) -> int:
        arguments = [f"--results={results}", f"--out={out}", *more]
        return run_script(WhereItHelps, run, name="experiments.where_it_helps", arguments=arguments)

    assert script("--check") == 1  # there is none
    assert not out.exists()
    assert script() == 0
    assert script("--check") == 0
    results.write_text(section("vqa-digits", GOOD.replace("+1.00", "+1.50")))
    capsys.readouterr()
    assert script("--check") == 1
    assert "is older than" in capsys.readouterr().err
    assert "+1.00 [" in out.read_text()


def test_ablations_are_left_out_with_a_word() -> None:
    page = page_of(section("alignment-x-ablations", GOOD.replace("WC", "marginal, jumps False")))
    assert "* Section alignment-x-ablations changes one option at a time" in page
    assert not rows_of(page)
