"""Table, studies and search on a tiny random BERT."""

import pytest

from experiments.files import UserError
from experiments.finetune import rows as known
from experiments.finetune.config import GlueSearchConfig, GlueStudyConfig, GlueTableConfig
from experiments.finetune.runs import run_options
from experiments.finetune.search import run as search
from experiments.finetune.studies import STUDIES
from experiments.finetune.studies import run as study
from experiments.finetune.table import run as table
from experiments.finetune.table import table_name
from tests.experiments.finetune.tiny_glue import write_bert, write_glue


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of a tiny sweep in this process."""
    # length and batch size are no options of sweeps
    monkeypatch.setitem(known.SEARCHED, "WC", {"concentration": 2.0})
    monkeypatch.setattr(known, "ROWS", {row: one | {"length": 20, "batch_size": 20} for row, one in known.ROWS.items()})
    monkeypatch.setattr("experiments.finetune.runs.ROWS", known.ROWS)
    return {
        "model": str(write_bert(tmp_path / "bert")), "data_root": write_glue(tmp_path),
        "out": tmp_path / "out",
        "results": tmp_path / "RESULTS.md", "max_epochs": 1, "num_samples": 2, "workers": 1, "progress": False,
        "sst2_share": 0.5, "rows": ("soft", "WC"),
    }  # fmt: skip


def test_table(options, capsys):
    config = GlueTableConfig(**options, tasks=("cola", "stsb"), seeds=2)
    means = table(config)
    page = options["results"].read_text()
    assert "<!-- begin glue-cola-stsb-bert -->" in page
    assert "GLUE (CoLA, STS-B) with bert" in page
    assert 0 <= means["cola/WC/test_attention_accuracy"] <= 1
    assert -1 <= means["stsb/soft/test_mc_dropout_pearson"] <= 1
    for part in (
        "MC dropout",
        "paper: ALBERT-base, WC",
        "55.8",
        "91.1",
        "WC: concentration 2",
        "Attention at its mean",
    ):
        assert part in page
    section = page[page.index("### CoLA") : page.index("### STS-B")]
    head, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines] == ["soft", "MC dropout", "WC"]
    assert "minus soft, by seeds" in head
    assert lines[2].count("[") == 2  # one interval over seeds, one over examples
    assert lines[0].count("[") == 0
    # nothing is trained again; a run whose predictions are gone is told of
    folder = options["out"] / "runs" / "cola-WC-0"
    assert not (folder / "checkpoints" / "best.safetensors").exists()
    (folder / "predictions.npz").unlink()
    with pytest.raises(UserError, match=r"predictions\.npz is missing"):
        table(GlueTableConfig(**options, tasks=("cola", "stsb"), seeds=2, resume=True))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("tasks", "name"),
    [
        (("mrpc", "rte", "cola", "stsb"), "glue-bert"),
        (("stsb", "cola", "rte", "mrpc"), "glue-bert"),
        (("sst2",), "glue-sst2-bert"),
        (("cola", "stsb"), "glue-cola-stsb-bert"),
    ],
)
def test_tables_of_other_tasks_have_a_name_of_their_own(tasks, name):
    assert table_name(GlueTableConfig(model="some/bert", tasks=tasks)) == name


@pytest.mark.parametrize("name", STUDIES)
def test_studies(name, options, monkeypatch, capsys):
    few = dict(list(STUDIES[name].levels.items())[-2:])
    monkeypatch.setattr(STUDIES[name].__class__, "levels", property(lambda _: few), raising=False)
    means = study(GlueStudyConfig(**options, name=name, seeds=1))
    page = options["results"].read_text()
    assert "MC dropout" in page
    assert ("trained on 50% of its examples" in page) == (name == "out_of_domain")  # that is SST-2
    if name == "out_of_domain":
        assert "CoLA: AUROC of mutual information minus soft" in page or "CoLA: AUROC of entropy minus soft" in page
        assert any(key.endswith("auroc_attention_rte_entropy") for key in means)
    else:
        assert "accuracy % minus soft" in page
        assert {key.split("/")[1] for key in means} == set(few)
    capsys.readouterr()


def test_search(options, monkeypatch, capsys):
    grid = {"WC": [{"concentration": 2.0}, {"concentration": 10.0}]}
    monkeypatch.setattr("experiments.finetune.search.GRIDS", grid)
    means = search(GlueSearchConfig(**options, tasks=("rte",)))
    assert set(means) == {"soft", "WC concentration=2", "WC concentration=10"}
    page = options["results"].read_text()
    assert page.count("| best |") == 3  # the head, and one of each row
    capsys.readouterr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ("WC",)}, "expected soft too"),
        ({"rows": ()}, "rows are none"),
        ({"model": ""}, "model is missing"),
    ],
)
def test_bad_options(options, changes, message):
    with pytest.raises(UserError, match=message):
        table(GlueTableConfig(**(options | changes)))


def test_only_sst2_has_sentences_from_elsewhere(options):
    with pytest.raises(UserError, match="task is rte, expected sst2, whose sentences the others are told from"):
        study(GlueStudyConfig(**options, name="out_of_domain", task="rte"))


def test_shares_of_the_examples_multiply():
    shares = [run_options(GlueTableConfig(model="m", sst2_share=0.3), task, "soft", train_share=0.5)["train_share"]
              for task in ("sst2", "rte")]  # fmt: skip
    assert shares == [0.15, 0.5]
