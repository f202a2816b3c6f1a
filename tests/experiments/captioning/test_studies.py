"""Studies of captions: their declarations, and what they publish, on tiny scenes and photographs."""

from dataclasses import fields

import pytest

from experiments.captioning import data as captioning_data
from experiments.captioning import studies
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.studies import STUDIES
from experiments.files import UserError, read_yaml
from experiments.harness.options import StudyOptions
from experiments.report.results import read_results
from tests.experiments.captioning.tiny_captions import colour_encoder, small_scenes, write_flickr8k

TINY = {"max_epochs": 1, "hidden": 8, "embedding": 8, "vocabulary": 300, "num_samples": 2, "beam": 1, "batch_size": 8}

# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of a tiny study."""
    monkeypatch.setattr(captioning_data, "mobilenet_grid", colour_encoder)
    monkeypatch.setattr(studies, "PAIRS", 2)
    small_scenes(monkeypatch)
    write_flickr8k(tmp_path)

    def options(name, **given):
        study = STUDIES[name]
        changes = TINY | ({"size": 64, "precision": "32"} if "dataset" in study.options else {})
        how = {"seeds": 1, "workers": 1, "progress": False, "data_root": tmp_path, "changes": changes}
        how |= {"base": {"max_epochs": 1} if study.base else {}}
        return StudyOptions(name=name, **how | {"out": tmp_path / "out", "results": tmp_path / "results"} | given)

    return options


def test_every_study_declares_options_that_there_are():
    known = {field.name for field in fields(CaptioningConfig)}
    for study in STUDIES.values():
        settings = [study.options, study.base, *study.rows.values()]
        assert {option for setting in settings for option in setting} <= known
        for row in (study.base, *study.rows.values()):
            CaptioningConfig(**{**study.options, **row})
        assert {*study.against, *study.against.values(), *study.paper} <= study.rows.keys()
        # what a search chose is one of the settings that it tried
        for row, settings in study.grid.items():
            assert any(setting.items() <= study.rows[row].items() for setting in settings)


def test_the_table_of_photographs(options, tmp_path):
    given = options("flickr8k", rows=("soft", "WC"))
    means = studies.table(given)
    report, source = read_results(next((tmp_path / "results").glob("captioning-flickr8k-mobilenet_v2*.json")))
    assert source.command.startswith("python -m experiments.captioning table flickr8k --seeds 1 --rows")
    soft, weibull = report.parts[0].rows
    assert weibull["CIDEr-D"].mean == pytest.approx(means["WC/test_cider_d"])
    assert (weibull["CIDEr-D: difference"].against, soft["paper"]) == ("soft", "32.2 / 54.7 / 104.0")
    parts = {part.title: part.rows for part in report.parts}
    (drawn,) = parts["5 captions of a photograph: posterior"]  # of random weights alone
    assert drawn["self-BLEU"].mean == pytest.approx(means["WC/test_self_bleu_posterior"])
    assert len(parts["5 captions of a photograph: temperature 0.5"]) == 2
    assert {"Besides", "Does doubt tell bad captions"} <= parts.keys()
    # photographs are not published
    assert [*(tmp_path / "results").iterdir()] == [next((tmp_path / "results").glob("*.json"))]
    figures = {path.name for path in (tmp_path / "out" / "figures").glob("*.png")}
    assert figures == {f"WC-{image}-{kind}.png" for image in (0, 1) for kind in ("attention", "uncertainty")}
    runs = tmp_path / "out" / "runs"
    saved, base = (read_yaml(runs / name / "config.yaml", "") for name in ("WC-0", "base-0"))
    assert (saved["init_from"], saved["learning_rate"], saved["kl_weight"]) == (str(runs / "base-0"), 1e-3, 0.01)
    assert (base["guide"], base["learning_rate"]) == ("soft", 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_end_to_end(name, options, tmp_path):
    means = studies.table(options(name))
    study, (path,) = STUDIES[name], (tmp_path / "results").glob("*.json")
    report, _ = read_results(path)
    assert report.name.startswith(study.name)
    assert [row[study.row] for row in report.parts[0].rows] == [*study.rows]
    assert {"perplexity", "validation perplexity"} & report.parts[0].rows[0].keys()
    assert all(f"{row}/val_ppl" in means for row in study.rows)
    shown = {path.name.partition("-")[0] for path in (tmp_path / "out" / "figures").glob("*.png")}
    assert shown == {
        "compare": {"weibull", "hard_enum"},
        "compare-flickr8k": {"weibull"},
        "flickr8k": {"WC", "hard"},
    }.get(name, set())


def test_gradients_of_both_estimators(options, tmp_path):
    studies.table(options("kl-estimators", rows=("soft", "gaussian", "gaussian sampled")))
    report, _ = read_results(next((tmp_path / "results").glob("kl-estimators*.json")))
    trainings, noise = report.parts
    assert [row["compared with"] for row in trainings.rows] == ["", "soft", "gaussian"]
    assert [(row["guide"], row["parameters"]) for row in noise.rows] == [
        ("gaussian", "untrained"), ("gaussian", "trained"),
    ]  # fmt: skip
    kl = [read_yaml(tmp_path / "out" / "runs" / f"{name}-0" / "config.yaml", "")["kl"]
          for name in ("gaussian", "gaussian-sampled")]  # fmt: skip
    assert kl == ["closed_form", "sampled"]


def test_missing_photographs_stop_a_study(options, tmp_path):
    with pytest.raises(UserError, match=r"Flickr8k\.token\.txt"):
        studies.table(options("flickr8k", data_root=tmp_path / "nowhere"))
