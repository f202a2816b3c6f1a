"""Every snippet, command and link of the README and of the site.

A snippet that needs what no test has, such as a cluster, begins with "```python not-run".
"""

import re
import runpy
import shlex
import sys
from argparse import ArgumentError
from pathlib import Path

import pytest
import torch

from experiments import cli
from experiments.files import UserError
from experiments.options import parse
from experiments.report.report import RESULTS, results_in
from tests.pictures import readable_pictures  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"gallery", "tables"}  # when the site is built
WRITTEN = [path for path in sorted(DOCS.rglob("*.md")) if not MADE.intersection(path.relative_to(DOCS).parts)]
READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in READ}


def blocks(text: str, *languages: str) -> list[str]:
    """What stands in the fences of these languages, in their order; "" is that of a fence without one."""
    return [code for language, code in re.findall(r"^```(.*?)\n(.*?)^```$", text, re.S | re.M) if language in languages]


def run_snippets(name: str) -> dict[str, object]:
    """The names that the Python code of a page leaves, all blocks run one after the other."""
    namespace: dict[str, object] = {"__name__": "page"}
    for snippet in blocks(PAGES[name], "python"):
        exec(compile(snippet, name, "exec"), namespace)
    return namespace


def pages_with_code() -> list[str]:
    return [name for name, text in PAGES.items() if blocks(text, "python") and name != "README.md"]


@pytest.mark.parametrize("name", pages_with_code())
def test_the_snippets_of_a_page_run(name, tmp_path, monkeypatch):
    if "transformers" in PAGES[name]:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    run_snippets(name)


def test_the_readme_is_short_and_runs_and_its_predictions_are_uncertain(tmp_path, monkeypatch):
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 130
    monkeypatch.chdir(tmp_path)
    names = run_snippets("README.md")
    weights, fresh_y = names["weights"], names["fresh_y"]
    assert (
        (fresh_y.quantiles[0.95] - fresh_y.quantiles[0.05]) > 0.2
    ).all()  # the noise of y, of deviation 0.1, has 0.33
    assert fresh_y.mean.shape == (3,)
    assert weights.shape == (100, 3, 2, 5, 5)
    assert torch.allclose(weights.sum(-1), torch.ones(100, 3, 2, 5))


def test_the_family_is_that_of_the_contract_tests():
    (example,) = [code for code in blocks(PAGES["docs/how_to/own_family.md"], "python") if "OneParameterFamily" in code]
    assert example.strip() in (ROOT / "tests" / "families" / "inverse_gamma.py").read_text()


# Commands

ALL_TEXT = "\n".join(PAGES.values())
FENCED = "\n".join(block for text in PAGES.values() for block in blocks(text, "", "bash"))
COMMANDS = {line.partition("  # ")[0].strip() for line in re.findall(r"^python -m experiments\..*", FENCED, re.M)}
COMMANDS |= {" ".join(line.split()) for line in re.findall(r"`(python -m experiments\.\w[^`]*)`", ALL_TEXT)}
COMMANDS |= {source.command for _, source in results_in(RESULTS)}


def parse_alone(command: cli.Command, given: list[str], name: str) -> int:
    """What a script does before it runs."""
    config = cli._resolved(command.config)
    try:
        config(**parse(config, given, name=name, training=cli._resolved(command.training)))
    except (ArgumentError, UserError) as error:
        return cli.user_error(error, code=2)
    return 0


def script_of(module: str) -> Path:
    """The file that ``python -m`` runs."""
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__main__.py"


@pytest.mark.parametrize("line", sorted(COMMANDS))
def test_every_command_is_understood(line, monkeypatch, capsys):
    _, _, module, *given = shlex.split(line)
    script = script_of(module)
    monkeypatch.setattr(cli, "_run", parse_alone)
    monkeypatch.setattr(sys, "argv", [str(script), *given])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0, capsys.readouterr().err


# Files and links


def linked_files() -> list[tuple[str, str]]:
    """Page and target of every link to a file of the repository."""
    found = []
    for name, text in PAGES.items():
        prose = re.sub(r"^```.*?\n.*?^```$", "", text, flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^```{(?:image|include)} (\S+)", text, re.M):
            if "://" not in target and not target.startswith("#"):
                found.append((name, str((ROOT / name).parent / target.partition("#")[0])))
    return found


def test_every_file_linked_exists():
    assert [(name, target) for name, target in linked_files() if not Path(target).exists()] == []
    named = re.findall(r"^     (\w[\w./]*(?:\.py|/))", PAGES["docs/architecture.md"], re.M)
    assert [name for name in named if not (ROOT / "pyro_attention" / name).exists()] == []
    assert len([name for name, _ in linked_files() if name == "README.md"]) > 10
