"""Every command of the README and of the site is executed, at a tiny size: what it promises is there afterwards.

``tests/pages/commands.py`` holds the commands; the ordinary tests check that none of the pages is missing there.
"""

import json
import math
import re
import runpy
import shlex
import shutil
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from experiments.benchmarks import measuring, suite
from experiments.report.report import RESULTS, read_results
from tests.experiments.benchmarks.test_suite import TINY
from tests.experiments.test_declarations import glossary
from tests.experiments.training_scripts import small_data  # noqa: F401 (a fixture)
from tests.pages.commands import CHAINS, QUICK, Step
from tests.pages.data import write_files
from tests.pages.elsewhere import ELSEWHERE, NOT_RUN
from tests.pictures import readable_pictures  # noqa: F401 (a fixture)
from tests.test_pages import ALL_TEXT, PAGES, ROOT, blocks, script_of

PROGRAMS = r"(?:python|pip|make|git|cd|torchrun|srun)\b"
EXECUTED = {step.line for chain in CHAINS.values() for step in chain}
LISTED = EXECUTED | ELSEWHERE.keys() | NOT_RUN.keys()
TABLE = "tests/pages/commands.py"


def commands() -> set[str]:
    """All command lines of the pages; of ``make``, each target by itself."""
    fenced = "\n".join(block for text in PAGES.values() for block in blocks(text, "", "bash")).replace("\\\n", " ")
    found = {line.partition("  # ")[0] for line in re.findall(rf"^{PROGRAMS}.*", fenced, re.M)}
    inline = re.findall(rf"`({PROGRAMS} [^`]*)`", re.sub(r"^```.*?^```$", "", ALL_TEXT, flags=re.S | re.M))
    lines = {" ".join(line.split()) for line in [*found, *inline]}
    targets = {word for line in lines if line.startswith("make ") for word in shlex.split(line)[1:] if "=" not in word}
    return {line for line in lines if not line.startswith("make ")} | {f"make {target}" for target in targets}


def test_a_command_of_a_page_is_executed_and_what_is_executed_stands_on_a_page():
    demo = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    found = {*commands(), *re.findall(r"^\t\$\(BIN\)/(.*)", demo, re.M)}
    assert found - LISTED == set(), f"a page has these; add them, with options that make them tiny, to {TABLE}"
    assert LISTED - found == set(), f"no page has these; remove them from {TABLE}"
    for place in set(ELSEWHERE.values()):
        name, _, part = place.partition("::")
        assert (f"\ndef {part}(" if part.startswith("test_") else part) in (ROOT / name).read_text(), place


# Execution


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the commands read; of photographs and a graph of one's own it is what the pages show."""
    folder = tmp_path_factory.mktemp("pages")
    write_files(folder, json.loads(blocks(PAGES["docs/how_to/own_photographs.md"], "json")[0]))
    with chdir(folder):
        exec(blocks(PAGES["docs/how_to/own_graph.md"], "python")[0], {})
    return folder


@pytest.fixture
def place(files, tmp_path, monkeypatch, small_data):  # noqa: F811
    """A folder to run commands in; what takes long and is no option is short."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYRO_ATTENTION_DATA", str(tmp_path / "DIR"))
    monkeypatch.setattr(measuring, "peak_memory", lambda *_: 1.0)  # each of its processes imports torch again
    monkeypatch.setattr(suite, "BENCHMARKS", TINY)
    before = {path: path.stat().st_mtime_ns for path in RESULTS.rglob("*")}
    yield tmp_path
    after = {path: path.stat().st_mtime_ns for path in RESULTS.rglob("*")}
    assert after == before, f"{RESULTS} was written; pass --results in {TABLE}"


def execute(line: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command in this process, which has imported torch: its exit code."""
    _, how, what, *given = shlex.split(line)
    if how == "-c":
        exec(what, {})
        return 0
    monkeypatch.setattr(sys, "argv", [str(script_of(what)), *given])
    try:
        runpy.run_path(str(script_of(what)), run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0


def files_of(folder: Path) -> dict[Path, int]:
    """The JSON files in a folder, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}


def check_numbers(step: Step, before: dict[Path, int], folder: Path) -> None:
    """Metrics that the command has written are finite and explained; what it has published can be read."""
    for path in [path for path, time in files_of(folder).items() if before.get(path) != time]:
        if path.name == "metrics.json":
            metrics = json.loads(path.read_text())
            assert metrics, path
            names = {
                name: name.rpartition("/")[2] if (path.parent / "report.md").exists() else name for name in metrics
            }
            lacking = [name for name, value in metrics.items() if value is None or not math.isfinite(value)]
            lacking = [name for name in lacking if not any(re.fullmatch(one, names[name]) for one in step.undefined)]
            assert lacking == [], f"{path}: no finite number for these"
            if (path.parent / "checkpoints").is_dir():  # a training
                unknown = [name for name in metrics if not any(re.fullmatch(one, name) for one in glossary())]
                assert unknown == [], f"{path}: docs/metrics.md does not explain these"
        elif path.parent.name == "results":
            report, source = read_results(path)
            assert report.title, path
            assert source.command.startswith("python -m experiments."), path


def test_every_task_has_a_tiny_training_in_each_run_of_the_tests():
    tasks = {path.parent.name for path in (ROOT / "experiments").glob("*/task.py")}
    assert {*QUICK} <= CHAINS.keys()
    quick = " ".join(step.line for name in QUICK for step in CHAINS[name])
    assert {task for task in tasks if f"experiments.{task} " not in quick} == {"aligners"}  # it trains no network


def too_long(printed: str) -> list[str]:
    """Lines that do not fit a terminal of 80 columns; a path, which stays whole, may be longer."""
    graph = r"^level \d+: "  # of ``python -m tests.test_architecture``, which is no command of the product
    return [line for line in printed.splitlines() if len(line) > 80 and not re.search(rf"\S*/\S*$|{graph}", line)]


# an untrained network writes any character, and not every font has it; few draws carry no weight
@pytest.mark.filterwarnings("ignore:Glyph", "ignore:draws given the observations", "ignore:.*draws are too few")
@pytest.mark.parametrize(
    "chain", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CHAINS]
)
def test_commands_do_what_their_pages_say(chain, place, monkeypatch, capfd):
    for step in CHAINS[chain]:
        before = files_of(place)
        code = execute(f"{step.line} {step.more}", monkeypatch)
        printed, errors = capfd.readouterr()
        assert code == 0, f"{step.line}\n{errors}"
        assert too_long(printed) == [], step.line
        assert [part for part in step.prints if part not in printed] == [], step.line
        assert [pattern for pattern in step.leaves if not any(place.glob(pattern))] == [], step.line
        check_numbers(step, before, place)
