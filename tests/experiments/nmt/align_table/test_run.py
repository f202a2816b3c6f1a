"""The table of aligners: end to end on a tiny corpus, its options, and bad input."""

from functools import partial

import pytest

from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader
from experiments.datasets.text.readers import toy
from experiments.datasets.text.toy_translation import toy_translation
from experiments.files import UserError
from experiments.harness.cli import run_commands
from experiments.harness.results import read_metrics
from experiments.nmt.align_table.config import AlignTable
from experiments.nmt.align_table.rows import ablation_row, row_options
from experiments.nmt.align_table.run import run
from experiments.nmt.config import COMMANDS

TINY = {"dataset": "toy", "hidden": 8, "embedding": 8, "vocabulary": 300, "num_samples": 3, "max_epochs": 1}
TINY |= {"workers": 1, "progress": False, "seeds": 1}


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    monkeypatch.setattr(toy, "toy_corpus", partial(toy_translation, 0, train=32, val=4, test=6))


def test_end_to_end(tmp_path, capsys):
    page = tmp_path / "RESULTS.md"
    schemes = ("soft", "marginal", "weibull", "categorical_enum")
    options = TINY | {"out": tmp_path / "out", "results": page, "ablated": "marginal"}
    metrics = run(AlignTable(schemes=schemes, ablations=("diagonal", "null_word"), **options))
    printed = capsys.readouterr().out
    for row in (
        *schemes,
        "marginal, diagonal False",
        "marginal, null_word False",
        "IBM Model 1",
        "Model 2 with a diagonal prior (as fast_align)",
    ):
        assert f"\n{row}  " in printed
    for title in ("Links by the prior", "Against the baselines", "Ablations", "Is the uncertainty worth something?"):
        assert title in printed
    assert read_metrics(tmp_path / "out") == pytest.approx(metrics)
    names = {name.rpartition("/")[2] for name in metrics if name.startswith("weibull/")}
    assert {
        "posterior aer, chosen",
        "posterior aer, geometric, mbr",
        "ece_mean",
        "aer at 50%",
        "precision",
        "agreement",
    } <= names
    assert "has the largest agreement of both directions" in printed
    priors = {row for row in schemes if f"{row}/prior aer, intersection" in metrics}
    # soft attention has none, and that of weibull, which sees the source alone, aligns nothing
    assert priors == {"marginal", "categorical_enum"}
    part, exact = (
        printed.split("Links by the prior")[1].split("Against the baselines")[0].split("by the exact posterior")
    )
    cells = {line.split()[0]: line.split()[1:] for line in part.splitlines() if line.startswith(schemes)}
    assert cells["soft"] == cells["weibull"] == ["-"] * 8
    assert "-" not in cells["marginal"]
    # where there is no inference network, the posterior is exact already, or cannot be summed out
    assert [line.split()[0] for line in exact.splitlines() if line.startswith(schemes)] == ["categorical_enum"]
    assert all(0 <= value <= 1 for name, value in metrics.items() if "aer" in name or "ece" in name)
    pictures = sorted(path.name for path in (tmp_path / "pictures").glob("*.png"))
    assert pictures == ["alignment-toy-ablations-aer.png", "alignment-toy-ablations-calibration.png"]
    assert "Word alignment: toy, one option changed at a time" in page.read_text()
    assert all(f"(pictures/{name})" in page.read_text() for name in pictures)
    # rows are added to what is there, and nothing is trained again
    files = [*tmp_path.glob("out/runs/*/checkpoints/best.safetensors"), *tmp_path.glob("out/baselines/*.npz")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) == 12 + 3
    again = run(AlignTable(schemes=("marginal",), baselines=("ibm1",), resume=True, **options))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {name: again[name] for name in again if "aer" in name} == {
        name: metrics[name] for name in again if "aer" in name
    }


# rows


def test_rows_and_directions():
    config = AlignTable(schemes=("soft", "weibull", "dirichlet"))
    rows = row_options(config)
    assert list(rows) == [(row, way) for row in config.schemes for way in ("forward", "backward")]
    assert [(rows["soft", way]["source"], rows["soft", way]["target"]) for way in ("forward", "backward")] == [
        ("de", "en"),
        ("en", "de"),
    ]
    assert [rows[row, "forward"]["kl_weight"] for row in config.schemes] == [1.0, 0.01, 1.0]
    assert [rows[row, "forward"]["warm_start"] for row in config.schemes] == [0, 0, 2]
    assert rows["dirichlet", "forward"]["posterior_from_prior"]
    no_warm_start = row_options(AlignTable(schemes=("dirichlet",), warm_start=0))
    assert not no_warm_start["dirichlet", "forward"]["posterior_from_prior"]
    assert [rows[row, "forward"]["prior_from"] for row in config.schemes] == ["words", "words", "place"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_feed", "expected"),
        ("diagonal", False),
        ("null_word", False),
        ("words_from", "both"),
        ("encoder", "lstm"),
        ("prior_from", "words"),
        ("jumps", False),
        ("normalizer", "temporal"),
        ("vocabulary", 1333),
        ("posterior_from_prior", True),
    ],
)
def test_an_ablation_changes_one_option(name, value):
    config = AlignTable(schemes=("categorical_enum",), ablations=(name,))
    rows = row_options(config)
    row = ablation_row(config, name)
    assert row == f"categorical_enum, {name} {value}"
    changed = {key: new for key, new in rows[row, "forward"].items() if new != rows["categorical_enum", "forward"][key]}
    assert changed == {name: value}


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schemes": ()}, "--schemes is empty"),
        ({"schemes": ("soft",), "ablations": ("diagonal",)}, "--ablated categorical_enum is not among --schemes"),
        ({"schemes": ("soft",), "target": "fr"}, "no language is named 'fr'"),
        ({"schemes": ("soft",), "test_pairs": 1}, "1 gold sentence; expected 2 at least"),
        ({"schemes": ("soft",), "baselines": ("eflomal",)}, "eflomal-align is not installed; pip install eflomal"),
        ({"schemes": ("soft",), "dataset": "iwslt14"}, "missing"),
        ({"schemes": ("soft",), "coverage": (0.5, 0.0)}, r"--coverage has 0\.0, expected shares of the words, above 0"),
    ],
)
def test_what_can_not_be(tmp_path, monkeypatch, options, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("experiments.nmt.align_table.run.nmt", None)  # refused before anything is trained
    with pytest.raises(UserError, match=message):
        run(AlignTable(**(TINY | options | {"out": tmp_path / "out", "data_root": tmp_path})))


def test_a_text_without_gold_links(tmp_path, monkeypatch):
    def read(root, split, languages, rules):
        text = toy.read_toy(root, split, languages, rules)
        return type(text)(text.source, text.target, "bare", languages)

    monkeypatch.setitem(PARALLEL, "toy", ParallelReader(read, ("de", "en"), tokenised=True))
    with pytest.raises(UserError, match="the test pairs of toy have no gold links"):
        run(AlignTable(schemes=("soft",), out=tmp_path / "out", **TINY))


def test_help(capsys):
    with pytest.raises(SystemExit):
        run_commands(COMMANDS, name="experiments.nmt", arguments=["align-table", "--help"])
    assert "--ablations" in capsys.readouterr().out
