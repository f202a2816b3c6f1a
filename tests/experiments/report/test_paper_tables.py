"""Pages of the papers: tables that are made of results stand there as they are made, and the list of all is whole."""

import re
import runpy
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import cli
from experiments.report.paper_tables import (
    PAGES,
    TABLES,
    cell,
    filled,
    first_table,
    k_max,
    other_readings,
    questions,
    schemes,
    uncertainty,
)
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Difference, summarize
from tests.experiments.test_declarations import _TASKS
from tests.test_pages import parse_alone, script_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_is_made_of_the_results(path):
    text = path.read_text()
    assert filled(text) == text, "run python -m experiments.pages"
    assert text.count("<!-- table: ") == text.count("<!-- end -->")


def test_every_table_stands_on_a_page():
    named = [name for path in PAGES for name in re.findall(r"<!-- table: (\S+) -->", path.read_text())]
    assert sorted(named) == sorted(TABLES)
    with pytest.raises(KeyError, match="unknown"):
        filled("<!-- table: unknown -->\n<!-- end -->")


# Tables


def reports(**numbers):
    """Results of translation, a number a scheme or several, one a seed."""
    rows = [
        {"scheme": scheme} | dict.fromkeys(("perplexity", "BLEU", "K-max ppl"), summarize(values, 3))
        for scheme, values in numbers.items()
    ]
    name = "translation-multi30k"
    return {name: Report("Translation", name, [Part(text="first"), Part(rows=rows)])}


def row_of(table, scheme):
    (line,) = [line for line in table.splitlines() if f"`{scheme}`" in line]
    return [entry.strip() for entry in line.strip("|").split("|")]


def test_numbers_stand_beside_those_of_the_paper():
    table = schemes(reports(soft=[6.662], marginal=[6.0, 6.1, 6.2]))
    assert row_of(table, "soft")[1:7] == ["7.03", "6.66", "-", "32.31", "6.7", "-"]
    assert row_of(table, "marginal")[2] == "6.10 ± .10"
    assert row_of(table, "dirichlet")[1:4] == ["7.58", "-", "-"]
    assert row_of(k_max(reports(marginal=[6.0])), "marginal")[1:4] == ["6.33, 6.89", "6.00, 6.00", "-"]


def test_questions_have_the_entropy_of_the_sets_that_measure_it():
    scores = Part(rows=[{"row": "soft", "NLL": summarize([0.5], 3), "accuracy %": summarize([75.0], 2)}])
    looking = Part(rows=[{"row": "soft", "entropy of attention": summarize([1.0])}])
    digits, easy = "vqa-alignments-digits", "vqa-alignments-easy_vqa"
    table = questions({digits: Report("", digits, [scores, looking]), easy: Report("", easy, [scores])})
    assert row_of(table, "soft")[1:] == ["1.76", ".500", ".500", "58.93", "75.0", "75.0", "2.70", "1.00"]
    assert row_of(table, "marginal")[1:4] == ["1.69", "-", "-"]


def test_a_cell():
    rows = first_table("translation-multi30k", reports(soft=[0.5, 0.7]))
    assert cell(rows, "soft", "perplexity", 1) == ".6 ± .1"
    assert cell(rows, "soft", "unknown", 1) == cell(rows, "hard", "perplexity", 1) == "-"
    assert cell({"soft": {"BLEU": summarize([10.0])}}, "soft", "BLEU", 0) == "10"


def test_readings_stand_there_once_they_are_published(tmp_path):
    assert "published" in other_readings({})
    rows = [{"trained": "soft", "soft": summarize([6.6, 6.8]), "K = 5": summarize([7.0, 7.0])}]
    report = Report("Readings", "readings-multi30k", [Part(rows=rows)])
    write_results(tmp_path, report, replace(source_of([], "command"), command="command"))
    text = filled("<!-- table: readings -->\n<!-- end -->", tmp_path)
    assert "| trained | soft | K = 5 |" in text
    assert "| soft | 6.70 ± .14 | 7.00 ± .00 |" in text
    assert filled(text, tmp_path) == text


def test_kinds_of_uncertainty_have_a_table_for_each_task_and_clear_differences_in_bold():
    def row(task, name, **numbers):
        return {"task": task, "row": name, "passes": "1", **numbers}

    def minus(number, *, bold):
        options = {"metric": "NLL", "against": "soft", "better": "lower", "bold": bold}
        return Difference(number, number - 1, number + 1, digits=3, **options)

    means = [
        row("SST-2", "soft", NLL=summarize([0.5, 0.6], 3)),
        row("SST-2", "ensemble", NLL=summarize([0.4], 3)),
        row("CoLA", "soft", NLL=summarize([0.7], 3)),
        row("CoLA", "ensemble", NLL=summarize([0.65], 3)),
    ]
    differences = [
        row("SST-2", "ensemble", NLL=minus(-0.15, bold=True)),
        row("CoLA", "ensemble", NLL=minus(-0.05, bold=False)),
    ]
    name = "uncertainty-all-MiniLM-L6-v2"
    text = uncertainty({name: Report("Kinds", name, [Part(rows=means), Part(rows=differences)])})
    first, second = text.split("CoLA:")
    assert "SST-2:" in first
    assert "| row | passes | NLL |" in first
    assert "| soft | 1 | .550 |" in first
    assert "| ensemble | 1 | **.400** |" in first
    assert "| ensemble | 1 | .650 |" in second


# The list of all tables, figures and ablations

LIST = (ROOT / "docs" / "papers.md").read_text().partition("## Published sizes")[0]
ROWS = [
    [entry.strip() for entry in line.strip("|").split("|")]
    for line in LIST.splitlines()
    if line.startswith("| ") and not line.startswith("| what |")
]
LISTED = sorted({command for row in ROWS for command in re.findall("`([^`]+)`", row[1])})
VERDICTS = ("agrees", "differs", "no clear difference", "runs", "missing", "nothing to run")


def test_a_row_has_a_verdict():
    assert len(ROWS) > 60
    for row in ROWS:
        assert len(row) == 4, row
        assert row[3].rstrip("| ").startswith(VERDICTS), row
        assert row[1] or row[2] or row[3].startswith(("missing", "nothing")), row


@pytest.mark.parametrize(
    ("title", "tables", "figures"),
    [
        ("Bayesian Attention Modules", range(1, 9), (1, 2)),
        ("Latent Alignment and Variational Attention", range(1, 4), (3, 4)),  # the others are sketches of the model
        ("Attention that does not Explain Away", range(1, 7), range(1, 10)),
    ],
)
def test_no_table_and_figure_of_a_paper_is_left_out(title, tables, figures):
    section = LIST.partition(f"### {title}")[2].partition("###")[0]
    for kind, numbers in (("table", tables), ("figure", figures)):
        lines = re.findall(rf"^\| [^|]*\b{kind}s? ([\d, and]+)", section, re.M)
        found = {int(number) for line in lines for number in re.findall(r"\d+", line)}
        assert set(numbers) <= found, kind


@pytest.mark.parametrize("line", LISTED)
def test_a_command_of_the_list_is_understood(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cli, "_run", parse_alone)
    script, *given = shlex.split(line)
    path = script_of(f"experiments.{script}")
    monkeypatch.setattr(sys, "argv", [str(path), *given])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 0, capsys.readouterr().err
    if given and given[0].endswith("table"):
        assert given[1] in {name for studies in _TASKS for name in studies}
