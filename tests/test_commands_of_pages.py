"""Every command of the README and of the site is executed, at a tiny size: what it promises is there afterwards.

``tests/pages/commands.py`` holds the commands; the ordinary tests check that none of the pages is missing there.
"""

import json
import re
import runpy
import shlex
import shutil
import sys
from contextlib import chdir

import pytest

from experiments.benchmarks import measuring, suite
from experiments.report.report import RESULTS
from tests.experiments.benchmarks.test_suite import TINY
from tests.experiments.training_scripts import small_data  # noqa: F401 (a fixture)
from tests.pages.commands import CHAINS
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


def too_long(printed: str) -> list[str]:
    """Lines that do not fit a terminal of 80 columns; a path, which stays whole, may be longer."""
    return [line for line in printed.splitlines() if len(line) > 80 and not re.search(r"\S*/\S*$", line)]


@pytest.mark.slow
# an untrained network writes any character, and not every font has it; few draws carry no weight
@pytest.mark.filterwarnings("ignore:Glyph", "ignore:draws given the observations", "ignore:.*draws are too few")
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_commands_do_what_their_pages_say(chain, place, monkeypatch, capfd):
    for step in chain:
        code = execute(f"{step.line} {step.more}", monkeypatch)
        printed, errors = capfd.readouterr()
        assert code == 0, f"{step.line}\n{errors}"
        assert too_long(printed) == [], step.line
        assert [part for part in step.prints if part not in printed] == [], step.line
        assert [pattern for pattern in step.leaves if not any(place.glob(pattern))] == [], step.line
