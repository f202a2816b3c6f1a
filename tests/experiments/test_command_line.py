"""Command lines of all scripts: what they import, the help, what they answer to a wrong word, and Ctrl-C."""

import json
import re
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest

from experiments.cli import Command, run_commands
from experiments.files import UserError
from experiments.finetune.config import COMMANDS as FINE_TUNING
from experiments.graph.config import COMMANDS as GRAPHS
from experiments.graph.config import GraphConfig
from experiments.nmt.config import COMMANDS as TRANSLATION
from experiments.nmt.config import ReadingsConfig
from experiments.options import StudyOptions, configuration, option_parser, parse
from guides.names import AblationSchemeName, NormalizerName, SchemeName

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in sorted((ROOT / "experiments").rglob("*.py"))}
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path, text in SOURCES.items()
    if '\nif __name__ == "__main__":' in text
]
TARGETS = sorted({target for text in SOURCES.values() for target in re.findall(r'"(experiments\.[\w.]+:\w+)"', text)})
SUBCOMMANDS = {one.removesuffix(".config:COMMANDS"): resolve_name(one) for one in TARGETS if one.endswith(":COMMANDS")}
LINES = [f"{script} {word}".rstrip() for script in SCRIPTS for word in ("", *SUBCOMMANDS.get(script, ()))]
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


def test_help_and_a_typing_error_need_no_heavy_import():
    command = [sys.executable, "-c", _ANSWER, json.dumps(LINES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answers = json.loads(done.stderr.splitlines()[-1])
    expected = {f"{line} {last}": [code, []] for line in LINES for last, code in (("--help", 0), ("--hepl", 2))}
    assert answers == expected


def test_what_scripts_name_is_there():
    for target in TARGETS:
        found = resolve_name(target)
        assert callable(found) or all(isinstance(command, Command) for command in found.values()), target


def config_types():
    commands = [command.config for commands in SUBCOMMANDS.values() for command in commands.values()]
    found = [*map(resolve_name, TARGETS), *commands]
    return sorted({one for one in found if isinstance(one, type) and is_dataclass(one)}, key=str)


@pytest.mark.parametrize("config_type", config_types(), ids=lambda found: found.__name__)
def test_every_option_has_a_help_text_and_shows_its_default(config_type):
    parser = option_parser(config_type, name="script")
    options = {action.dest: action for action in parser._actions}
    for field in fields(config_type):
        assert options[field.name].help, field.name
        assert "Unvalidated" not in str(getattr(options[field.name], "_typehint", "")), f"no type of {field.name}"
    optional = [field for field in fields(config_type) if not field.default is field.default_factory is MISSING]
    assert parser.format_help().count("default:") == len(optional)
    assert parser.description


def the_error(capsys):
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err.rstrip()


def test_the_commands_are_listed():
    from experiments.__main__ import commands

    assert list(commands()) == sorted(name for one in SCRIPTS for name in re.findall(r"^experiments\.(\w+)$", one))


def test_help_has_a_group_for_each_dataclass_that_declares_options(capsys):
    with pytest.raises(SystemExit):
        run_commands(TRANSLATION, name="experiments.nmt", arguments=["train", "--help"])
    text = capsys.readouterr().out
    titles = tuple(
        ["options", "translation", "sequence", "batch", "training", "run", "alignment scheme", "scheme", "posterior"]
    )
    groups = re.split(rf"\n({'|'.join(titles)}):\n", text)
    assert tuple(groups[1::2]) == titles
    options = ("config", "text", "beam", "batch-size", "seed", "progress", "particles", "guide", "kl-weight")
    for option, group in zip(options, groups[2::2], strict=True):
        assert group.count(f"  --{option}") == text.count(f"  --{option}") > 0


# names that are known without what they stand for


def test_the_names_of_the_options_are_those_of_what_is_built():
    from guides.schemes import build_scheme
    from pyro_attention.normalizers import NORMALIZERS

    assert set(get_args(NormalizerName)) <= NORMALIZERS.keys()
    for name in get_args(SchemeName) + get_args(AblationSchemeName):
        assert build_scheme(name).objective() is not None


# what is answered to a wrong word


@pytest.mark.parametrize(
    ("commands", "line", "said"),
    [
        (GRAPHS, "train --guide=weibul", "--guide: .*'soft', 'weibull', .*; did you mean 'weibull'"),
        (GRAPHS, "train --gudie soft", "no option --gudie; did you mean '--guide'"),
        (GRAPHS, "train --lr 0.1", "no option --lr; did you mean '--learning-rate'"),
        (GRAPHS, "table", "required: name"),
        (TRANSLATION, "train --max-epochs 0", "--max-epochs is 0; expected a whole number above 0$"),
        (TRANSLATION, "train --k-max -1", "--k-max is -1; expected a whole number above 0 or null"),
        (TRANSLATION, "trian", "trian is no command, expected one of train, .*; did you mean 'train'"),
        (TRANSLATION, "train --text .", "--text is for dataset own, and dataset is toy"),
        (GRAPHS, "train --guide soft --learnable", "--learnable is for guide weibull, .*, and guide is soft"),
        (FINE_TUNING, "glue rte --model bert --guide weibull --kl-schedule constant --kl-warmup 0.1",
         "--kl-warmup is for kl-schedule linear, sigmoid, and kl-schedule is constant"),
    ],
)  # fmt: skip
def test_a_wrong_word_or_one_that_is_not_used_is_answered_in_one_line(commands, line, said, capsys):
    assert run_commands(commands, name="script", arguments=line.split()) == 2
    assert re.search(said, the_error(capsys))


def test_an_error_of_the_command_is_one_line(capsys):
    def fail(config):
        raise UserError("the disk\nis full")

    assert run_commands(Command(GraphConfig, fail), name="script", arguments=[]) == 1
    assert the_error(capsys) == "error: the disk is full"


@pytest.mark.parametrize(
    ("raises", "code", "said"),
    [
        ("KeyboardInterrupt", 130, "\ninterrupted; the same command with --resume continues"),
        ("ModuleNotFoundError('', name='transformers.utils')", 1, "transformers.utils is not installed; pip install"),
        ("ZeroDivisionError", None, ""),  # bugs keep their traceback
    ],
)
def test_what_happens_while_a_command_is_imported(raises, code, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "imported.py").write_text(f"raise {raises}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported", raising=False)
    if code is None:
        with pytest.raises(ZeroDivisionError):
            run_commands(Command(GraphConfig, "imported:run"), name="s", arguments=[])
        return
    assert run_commands(Command(GraphConfig, "imported:run"), name="s", arguments=[]) == code
    assert said in capsys.readouterr().err


# --config


def test_a_bad_configuration_file_is_answered_in_one_line(tmp_path, capsys):
    path = tmp_path / "saved.yaml"
    path.write_text("guide: weibul")
    assert run_commands(Command(GraphConfig, print), name="script", arguments=["--config", str(path)]) == 2
    assert "did you mean 'weibull'" in the_error(capsys)


def test_options_after_a_file_replace_its_own(tmp_path):
    path, seen = tmp_path / "config.yaml", []
    path.write_text("seed: 3\nkl_weight: 1e-3\nguide: soft\nout: /elsewhere\nmax_epochs: 2\n")
    arguments = ["--config", str(path), "--seed", "5", "--out", "mine", "--no-progress"]
    assert run_commands(Command(GraphConfig, seen.append), name="script", arguments=arguments) == 0
    expected = GraphConfig(seed=5, kl_weight=1e-3, guide="soft", out=Path("mine"), max_epochs=2, progress=False)
    assert seen == [expected]


def test_options_are_those_that_are_given():
    """A study changes nothing else in its rows: a default is no change."""
    assert parse(GraphConfig, ["--seed", "3"], name="train") == {"seed": 3}
    given = ["some-study", "--seeds", "2", "--heads", "4"]
    options = parse(StudyOptions, given, name="table", training=GraphConfig)
    assert {name: options[name] for name in ("seeds", "changes")} == {"seeds": 2, "changes": {"heads": 4}}
    assert len(options) == 3  # and the study


def test_changes_of_a_study_are_read_from_its_saved_configuration(tmp_path, capsys):
    """As are those of --changes; an option behind them replaces theirs, and a wrong one is no option of a training."""
    saved, weights = tmp_path / "config.yaml", tmp_path / "weights"
    saved.write_text(f"name: bam1\nseeds: 2\nchanges: {{heads: '4', kl_weight: 1e-3, graph: {weights}}}\n")
    options = parse(StudyOptions, ["--config", str(saved), "--heads", "2"], name="table", training=GraphConfig)
    assert options == {"name": "bam1", "seeds": 2, "changes": {"heads": 2, "kl_weight": 1e-3, "graph": weights}}
    options = parse(StudyOptions, ["bam1", "--changes", '{"heads": 3}'], name="table", training=GraphConfig)
    assert options["changes"] == {"heads": 3}
    table = Command(StudyOptions, print, training=GraphConfig)
    for given, message in (('{"heads": 0}', "--heads is 0"), ('{"hads": 1}', "hads"), ('{"seed": 1}', "seed")):
        assert run_commands(table, name="table", arguments=["bam1", "--changes", given]) == 2
        assert message in the_error(capsys)


def test_the_printed_configuration_is_whole(tmp_path, capsys):
    path = tmp_path / "printed.yaml"
    with pytest.raises(SystemExit) as stop:
        parse(GraphConfig, ["--heads", "3", "--print_config"], name="train")
    assert not stop.value.code
    path.write_text(capsys.readouterr().out)
    assert {line.partition(":")[0] for line in path.read_text().splitlines()} >= {"heads", "dataset", "kl_weight"}
    assert configuration(GraphConfig, parse(GraphConfig, ["--config", str(path)], name="train")) == GraphConfig(heads=3)
    with pytest.raises(SystemExit):
        parse(StudyOptions, ["bam1", "--heads", "3", "--print_config"], name="table", training=GraphConfig)
    path.write_text(capsys.readouterr().out)
    options = parse(StudyOptions, ["--config", str(path)], name="table", training=GraphConfig)
    assert options == {"name": "bam1", "changes": {"heads": 3}}


def test_a_missing_configuration_file_is_not_meant_by_its_own_name(tmp_path, capsys):
    arguments = ["--config", str(tmp_path / "none.yaml")]
    assert run_commands(Command(GraphConfig, print), name="script", arguments=arguments) == 2
    assert "did you mean" not in the_error(capsys)


def test_a_word_in_place_of_a_list(capsys):
    table = Command(StudyOptions, print, training=GraphConfig)
    assert run_commands(table, name="table", arguments=["bam1", "--rows", "soft"]) == 2
    assert the_error(capsys) == """error: --rows is soft; expected a list, such as '["A", "B"]'"""


def test_an_argument_by_position_is_named_without_dashes(capsys):
    assert run_commands(Command(ReadingsConfig, print), name="readings", arguments=["RUN"]) == 2
    assert the_error(capsys) == """error: runs is RUN; expected a list, such as '["A", "B"]'"""
