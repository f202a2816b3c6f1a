"""Command lines of all scripts: what they import, the help, what they answer to a wrong word, and Ctrl-C."""

import json
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest

from experiments.captioning.config import COMMANDS as CAPTIONING
from experiments.files import UserError
from experiments.finetune.config import COMMANDS as FINETUNING
from experiments.graph.config import COMMANDS as GRAPHS
from experiments.graph.config import GraphConfig
from experiments.harness.cli import Command, run_commands, run_script
from experiments.harness.option_parser import option_parser
from experiments.headlines.config import COMMANDS as HEADLINES
from experiments.nmt.config import COMMANDS as TRANSLATION
from experiments.pretrain.config import COMMANDS as PRETRAINING
from experiments.vqa.config import COMMANDS as QUESTIONS
from guides.names import AblationSchemeName, NormalizerName, SchemeName

ROOT = Path(__file__).parents[3]
SOURCES = {path: path.read_text() for path in sorted((ROOT / "experiments").rglob("*.py"))}
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path, text in SOURCES.items()
    if '\nif __name__ == "__main__":' in text
]
SUBCOMMANDS = {
    "experiments.graph": GRAPHS,
    "experiments.nmt": TRANSLATION,
    "experiments.captioning": CAPTIONING,
    "experiments.finetune": FINETUNING,
    "experiments.vqa": QUESTIONS,
    "experiments.headlines": HEADLINES,
    "experiments.pretrain": PRETRAINING,
}
LINES = [f"{script} {word}".rstrip() for script in SCRIPTS for word in ("", *SUBCOMMANDS.get(script, ()))]
TARGETS = sorted({target for text in SOURCES.values() for target in re.findall(r'"(experiments\.[\w.]+:\w+)"', text)})
HEAVY = ("torch", "lightning", "pyro", "matplotlib", "sklearn", "torchmetrics", "pandas", "nltk", "torchvision")

# run in a fresh process: what each command line leaves in sys.modules, and its exit code
_ANSWER = f"""
import json, runpy, sys
answers = {{}}
for line in json.loads(sys.argv[1]):
    for last in ("--help", "--hepl"):
        script, *words = line.split()
        sys.argv = [script, *words, last]
        try:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
            code = None
        except SystemExit as end:
            code = end.code
        answers[f"{{line}} {{last}}"] = code, [name for name in {HEAVY} if name in sys.modules]
print(json.dumps(answers), file=sys.__stderr__)
"""


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-c", _ANSWER, json.dumps(LINES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("line", LINES)
def test_help_and_a_typing_error_need_no_heavy_import(line, answers):
    assert answers[f"{line} --help"] == [0, []]
    assert answers[f"{line} --hepl"] == [2, []]


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_script_names_is_there(target):
    found = resolve_name(target)
    assert callable(found) or all(isinstance(command, Command) for command in found.values())


def config_types():
    commands = [*TRANSLATION.values(), *CAPTIONING.values(), *FINETUNING.values()]
    named = [*TARGETS, *(command.config for command in commands)]
    found = [resolve_name(name) if isinstance(name, str) else name for name in named if "_config" in str(name)]
    found += [resolve_name(name) for name in TARGETS if ".config:" in name]
    return sorted({one for one in found if is_dataclass(one) and isinstance(one, type)}, key=str)


@pytest.mark.parametrize("config_type", config_types(), ids=lambda found: found.__name__)
def test_every_option_has_a_help_text_and_shows_its_default(config_type):
    parser = option_parser(config_type, name="script")
    options = {action.dest: action for action in parser._actions}
    for field in fields(config_type):
        assert options[field.name].help, field.name
        assert "Unvalidated" not in str(getattr(options[field.name], "_typehint", "")), f"no type of {field.name}"
    optional = [field for field in fields(config_type) if field.default is not MISSING]
    assert parser.format_help().count("default:") == len(optional)
    assert parser.description


def test_the_commands_are_listed(capsys, monkeypatch):
    from experiments.__main__ import main

    monkeypatch.setattr(sys, "argv", ["experiments"])
    assert main() == 0
    listed = re.findall(r"^  (\w+) +\S", capsys.readouterr().out, re.M)
    assert listed == sorted(name for script in SCRIPTS for name in re.findall(r"^experiments\.(\w+)$", script))
    monkeypatch.setattr(sys, "argv", ["experiments", "nmt"])
    assert main() == 2
    assert "did you mean 'python -m experiments.nmt'" in the_error(capsys)


_BAR = """
from experiments.harness.cli import run_script
from experiments.harness.options import RunOptions

def run(config):
    import time
    from tqdm import tqdm
    for _ in tqdm(range(8)):
        time.sleep(0.2)

run_script(RunOptions, run, name="test", arguments=[])
"""


def test_bars_of_a_command_that_are_no_terminal_print_a_line_a_minute():
    done = subprocess.run([sys.executable, "-c", _BAR], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.count("it/s") == 2  # at the beginning and at the end


# names that are known without what they stand for


def test_the_names_of_the_options_are_those_of_what_is_built():
    from guides.schemes import build_scheme
    from pyro_attention.normalizers import NORMALIZERS

    assert set(get_args(NormalizerName)) <= NORMALIZERS.keys()
    for name in get_args(SchemeName) + get_args(AblationSchemeName):
        assert build_scheme(name).elbo is not None


def test_guides_are_found_at_the_package_and_imported_when_asked_for():
    import guides
    from guides.schemes import build_scheme

    assert guides.build_scheme is build_scheme
    assert all(getattr(guides, name).__name__ == name for name in guides.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'bild_scheme', expected one of .*build_scheme"):
        guides.bild_scheme  # noqa: B018


# what is answered to a wrong word


def graph_line(*arguments, run=lambda _: None):
    return run_script(GraphConfig, run, name="experiments.graph", arguments=arguments)


def nmt_line(*arguments):
    return run_commands(TRANSLATION, name="experiments.nmt", arguments=arguments)


def captioning_line(*arguments):
    return run_commands(CAPTIONING, name="experiments.captioning", arguments=arguments)


def table_line(*arguments):
    return run_commands(GRAPHS, name="experiments.graph", arguments=["table", *arguments])


def the_error(capsys):
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    ("line", "arguments", "said"),
    [
        (graph_line, ["--guide", "weibul"], "--guide weibul: expected one of soft, .*; did you mean 'weibull'"),
        (graph_line, ["--guide=weibul"], "did you mean 'weibull'"),
        (graph_line, ["--guide", "zzz"], "expected one of soft, weibull, lognormal, gamma$"),
        (graph_line, ["--gudie", "soft"], "no option --gudie; did you mean '--guide'"),
        (graph_line, ["--guid=soft"], "no option --guid; did you mean '--guide'"),
        (graph_line, ["--no-lernable"], "did you mean '--no-learnable'"),
        (graph_line, ["--lr", "0.1"], "no option --lr; did you mean '--learning-rate'"),
        (graph_line, ["soft"], "'soft' is one word too many"),
        (graph_line, ["--seed"], "--seed: expected one argument"),
        (graph_line, ["--seed", "x"], "--seed: .*'x'"),
        (table_line, ["bam1", "--architecture", "gta"], "--architecture gta: .*; did you mean 'gat'"),
        (table_line, ["bam1", "--levels", "cora"], "--levels: .*"),
        (table_line, [], "required: name"),
        (nmt_line, ["trian"], "trian is no command, expected one of train, .*; did you mean 'train'"),
        (nmt_line, [], "no command is given, expected one of train"),
        (nmt_line, ["train", "--guide", "categorical-enum"], "did you mean 'categorical_enum'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line_with_the_nearest(line, arguments, said, capsys):
    assert line(*arguments) == 2
    assert re.search(said, the_error(capsys).rstrip())


@pytest.mark.parametrize(
    ("line", "arguments", "said"),
    [
        (nmt_line, ["train", "--text", "."], "--text is for dataset own, and dataset is toy"),
        (
            nmt_line,
            ["train", "--guide", "marginal", "--kl-weight", ".1"],
            "--kl-weight is for guide weibull, .*marginal",
        ),
        (nmt_line, ["train", "--guide", "marginal", "--warm-start=1"], "--warm-start is for guide categorical_enum, "),
        (
            nmt_line,
            ["train", "--guide", "weibull", "--scale=1"],
            "--scale is for guide lognormal, gaussian, and guide is",
        ),
        (graph_line, ["--guide", "soft", "--learnable"], "--learnable is for guide weibull, .*, and guide is soft"),
        (graph_line, ["--kl-rate", "2"], "--kl-rate is for kl-schedule sigmoid, and kl-schedule is constant"),
        (captioning_line, ["train", "--encoder", "own"], "--encoder is for dataset flickr8k, coco, and"),
    ],
)
def test_an_option_that_is_given_and_not_used_is_refused(line, arguments, said, capsys):
    assert line(*arguments) == 2
    assert re.search(said, the_error(capsys).rstrip())


def test_a_saved_configuration_may_have_what_is_not_used(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("guide: soft\nkl_weight: 0.1\n")
    assert graph_line("--config", str(path)) == 0


@dataclass(frozen=True)
class Picky:
    """Options that go together, or not."""

    weight: float = 0.0

    def __post_init__(self):
        raise UserError("weight is 0.0,\nexpected more")


def fail(config):
    raise UserError("the disk\nis full\x1b[2J")


@pytest.mark.parametrize(
    ("config", "run", "code", "said"),
    [(GraphConfig, fail, 1, "the disk is full\ufffd[2J"), (Picky, print, 2, "weight is 0.0, expected more")],
)
def test_an_error_of_the_command_or_of_its_options_is_one_line(config, run, code, said, capsys):
    assert run_script(config, run, name="script", arguments=[]) == code
    assert the_error(capsys) == f"error: {said}\n"


# --config


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{seed: [", "cannot be read"),
        ("seeed: 1", "no option seeed; did you mean 'seed'"),
        ("config: other.yaml", "no option config"),
        ("guide: weibul", "--guide weibul: .*did you mean 'weibull'"),
        ("seed: x", "--seed"),
    ],
)
def test_a_bad_configuration_file_is_one_line_that_names_it(content, said, tmp_path, capsys):
    path = tmp_path / "saved.yaml"
    path.write_text(content)
    assert graph_line("--config", str(path)) == 2
    error = the_error(capsys)
    assert re.search(said, error)
    assert str(path) in error


@pytest.mark.parametrize("path", ["nowhere.yaml", "."])
def test_what_is_no_configuration_file_is_named(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert graph_line("--config", path) == 2
    assert path in the_error(capsys)


def test_options_after_a_file_replace_its_own(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("seed: 3\nkl_weight: 1e-3\nguide: gamma\nout: 2024-01-01\n")
    seen = []
    assert graph_line("--config", str(path), "--seed", "5", run=seen.append) == 0
    assert seen == [GraphConfig(seed=5, kl_weight=1e-3, guide="gamma", out=Path("2024-01-01"))]


def test_what_a_file_would_write_elsewhere_is_said_again_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "folder" / "config.yaml"
    path.parent.mkdir()
    path.write_text(f"out: {tmp_path / 'elsewhere'}\n")
    seen = []
    assert graph_line("--config", str(path), run=seen.append) == 2
    assert f"out is {tmp_path / 'elsewhere'}, expected a place inside of" in the_error(capsys)
    for word in (["--out", str(tmp_path / "mine")], [f"--out={tmp_path / 'mine'}"]):
        assert graph_line("--config", str(path), *word, run=seen.append) == 0
    path.write_text(f"out: {path.parent / 'beside'}\n")
    assert graph_line("--config", str(path), run=seen.append) == 0
    assert [config.out for config in seen] == [tmp_path / "mine"] * 2 + [path.parent / "beside"]


# Ctrl-C


@pytest.mark.parametrize("where", ["options", "command", "commands"])
def test_ctrl_c_while_something_is_imported_is_one_line(where, tmp_path, monkeypatch, capsys):
    (tmp_path / f"interrupted_{where}.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    target = f"interrupted_{where}:it"
    if where == "commands":
        code = run_commands(target, name="script", arguments=["train"])
    else:
        code = run_script(*((target, print) if where == "options" else (GraphConfig, target)), name="s", arguments=[])
    assert code == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.parametrize(("missing", "ours"), [("transformers.utils", False), ("experiments.nothing", True)])
def test_a_package_that_is_not_installed_is_named(missing, ours, tmp_path, monkeypatch, capsys):
    (tmp_path / "needs_more.py").write_text(f"raise ModuleNotFoundError('no', name='{missing}')")
    monkeypatch.syspath_prepend(tmp_path)
    if ours:
        with pytest.raises(ModuleNotFoundError):
            run_script(GraphConfig, "needs_more:run", name="s", arguments=[])
        return
    assert run_script(GraphConfig, "needs_more:run", name="s", arguments=[]) == 1
    assert "transformers.utils is not installed; pip install" in the_error(capsys)
