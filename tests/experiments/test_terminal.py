"""What is printed fits a terminal of 80 columns, and missing files are answered before torch is imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.captioning.config import COMMANDS as CAPTIONING
from experiments.cli import run_commands
from experiments.finetune.config import COMMANDS as FINETUNE
from experiments.graph.config import COMMANDS as GRAPHS
from experiments.nmt.config import COMMANDS as TRANSLATION
from experiments.pretrain.config import COMMANDS as PRETRAINING
from experiments.report.report import Part, Report
from experiments.report.terminal import as_table, metrics_table, width, wrapped
from tests.experiments.test_command_line import LINES, ROOT, SUBCOMMANDS

COLUMNS = 80
_HELP = """
import json, runpy, sys
for line in json.loads(sys.argv[1]):
    script, *words = line.split()
    sys.argv = [script, *words, "--help"]
    try:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    print("END OF", line)
"""


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Give every test a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def too_long(text):
    return [line for line in text.splitlines() if len(line) > COLUMNS]


def test_the_help_of_every_command_fits_and_has_no_markup():
    done = subprocess.run(
        [sys.executable, "-c", _HELP, json.dumps(LINES)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("END OF") == len(LINES)
    assert too_long(done.stdout) == []
    assert re.findall(r"`|:\w+:`|\*\*", done.stdout) == []


def test_the_list_of_the_commands_fits_and_has_no_markup(capsys):
    assert main([]) == main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert too_long(printed) == []
    assert "`" not in printed
    assert [name for name in SUBCOMMANDS if f"  {name.removeprefix('experiments.')} " not in printed] == []
    assert main(["grahp"]) == 2
    assert "did you mean 'graph'" in capsys.readouterr().err


# Tables and prose


def wide_rows(columns):
    return [{"row": row, **{f"metric {n}": f"{n}.123 ± 0.456" for n in range(columns)}} for row in ("soft", "WC")]


@pytest.mark.parametrize("columns", [1, 3, 4, 12])
def test_a_table_shows_the_columns_that_have_room_and_names_the_others(columns):
    text = as_table(wide_rows(columns))
    assert too_long(text) == []
    named = {f"metric {n}" for n in range(columns)}
    assert {match for match in re.findall(r"metric \d+", " ".join(text.split()))} == named
    shown = text.splitlines()[0].count("metric")
    assert shown == min(columns, 5)
    assert (f"{columns - shown} more columns" in text) == (columns > shown)


def test_a_wider_terminal_shows_more_columns(monkeypatch):
    few = as_table(wide_rows(12)).splitlines()[0]
    monkeypatch.setenv("COLUMNS", "300")
    more = as_table(wide_rows(12)).splitlines()[0]
    assert len(few) < len(more) <= width() == 100


def test_long_names_of_rows_and_single_words_are_cut():
    rows = [{"claim": "word " * 30, "difference": "x" * 90, "number": 1.0}]
    assert too_long(as_table(rows)) == []
    assert "…" in as_table(rows)


def test_a_report_on_the_terminal_fits(tmp_path):
    text = "A paragraph with `code` and a good deal of words that fill much more than a single line of it.\n\n" * 2
    lines = "no clear difference: " + "soft attention is worse than random attention " * 3 + "\n    cora: +0.1 [-1, 1]"
    parts = [Part("A title of a table", text, wide_rows(9)), Part("Claims", lines=lines), Part("of" * 20, text=text)]
    printed = Report("title", "name", parts, summary=text.split("\n")[0]).terminal()
    assert too_long(printed) == []
    assert "`" not in printed
    assert "\n    cora: +0.1 [-1, 1]" in printed


def test_wrapped_lines_keep_their_indentation_and_long_paths():
    path = "/".join(["folder"] * 20)
    assert wrapped(f"    saved in {path}").split() == ["saved", "in", path]
    assert all(line.startswith("    ") for line in wrapped("    " + "word " * 40).splitlines())


# Metrics of a training


def test_the_metric_that_judges_comes_first_and_is_marked():
    metrics = {f"other_{n}": 1.0 * n for n in range(70)} | {"val": 0.25, "accuracy": 0.5}
    lines = metrics_table(metrics, ("roc_auc", "accuracy", "val")).splitlines()
    assert lines[1].split() == ["accuracy", "0.5", "<-", "judges", "the", "task"]
    assert lines[2].split() == ["val", "0.25"]
    assert lines[3:] == ["70 more in metrics.json"]
    assert len(metrics_table(metrics).splitlines()) == 1 + len(metrics)


# Options of other programs, and files that are missing


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ("--accelerator", "'--device'"),
        ("--gpus", "'--device' or '--devices'"),
        ("--lr", "'--learning-rate'"),
        ("--epochs", "'--max-epochs'"),
        ("--batch", "'--batch-size'"),
    ],
)
def test_options_of_other_programs_are_answered_with_those_of_this_one(option, known, capsys):
    assert run_commands(TRANSLATION, name="script", arguments=["train", option, "1"]) == 2
    assert f"no option {option}; did you mean {known}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("commands", "line", "named"),
    [
        (GRAPHS, "train --graph missing.npz", "missing.npz .* is missing.*--graph"),
        (GRAPHS, "train --dataset actor --data-root empty", "empty/heterophilous is missing.*--data-root"),
        (GRAPHS, "table bam1 --graph missing.npz", "missing.npz .* is missing"),
        (TRANSLATION, "train --dataset own --text missing", "missing .* is missing.*--text"),
        (TRANSLATION, "train --dataset europarl_de_en --data-root empty", "europarl-de-en is missing.*--data-root"),
        (TRANSLATION, "align missing a.de a.en", "missing .* is missing; expected a file or folder for run"),
        (CAPTIONING, "train --dataset coco --data-root empty", "empty/coco is missing.*--data-root"),
        (PRETRAINING, "train --dataset own --text missing", "missing .* is missing.*--text"),
        (FINETUNE, "glue rte --model FOLDER --data-root empty", "empty/glue is missing.*--data-root"),
    ],
)
def test_a_missing_file_is_answered_before_the_command_is_imported(
    commands, line, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.cli.resolve_name", refuse_tasks)
    assert run_commands(commands, name="script", arguments=line.split()) == 1
    assert re.search(named, capsys.readouterr().err)


def refuse_tasks(target):
    from pkgutil import resolve_name

    assert ".config:" in target or target.startswith("experiments.options"), f"{target} was imported"
    return resolve_name(target)


def test_the_check_of_files_needs_no_heavy_import(tmp_path):
    code = "import sys, experiments.files, experiments.report.terminal; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_outputs_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = []
    command = GRAPHS["train"].__class__(GRAPHS["train"].config, configs.append)
    assert run_commands(command, name="script", arguments=["--out", "new", "--data-root", str(Path("later"))]) == 0
    assert len(configs) == 1
