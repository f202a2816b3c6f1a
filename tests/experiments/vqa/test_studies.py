"""Studies on questions: their declarations, and what they publish, on tiny scenes and photographs."""

from dataclasses import fields
from statistics import fmean

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from experiments.files import UserError
from experiments.harness.options import StudyOptions
from experiments.harness.results import read_metrics
from experiments.report.results import read_results
from experiments.study import Finished
from experiments.vqa import studies
from experiments.vqa.accuracy import vqa_accuracy
from experiments.vqa.config import VQAConfig
from experiments.vqa.data import load_words
from experiments.vqa.studies import NOISE, STUDIES, bootstrap
from tests.experiments.datasets.questions.tiny_questions import write_daquar, write_easy_vqa, write_vqa_v2
from tests.experiments.vqa.tiny_questions import TINY, few_digits

CHANGES = {name: value for name, value in TINY.items() if name != "progress"}


def table(folder, name, **given):
    """Train the rows of a study: the means of their metrics, and what it publishes."""
    how = {"seeds": 2, "workers": 1, "progress": False, "data_root": folder, "changes": CHANGES}
    how |= {"out": folder / "out", "results": folder / "results"}
    means = studies.table(StudyOptions(name=name, **how | given))
    (path,) = (folder / "results").glob("*.json")
    return means, *read_results(path)


def test_every_study_declares_options_that_there_are():
    known = {field.name for field in fields(VQAConfig)}
    for name, study in STUDIES.items():
        assert study.name == name
        settings = [study.options, *study.rows.values(), *study.levels.values()]
        assert {option for setting in settings for option in setting} <= known
        for level in study.levels.values():
            for row in study.rows.values():
                VQAConfig(**{**study.options, **level, **row})
        assert {*study.against, *study.against.values(), *study.paper} <= study.rows.keys()
        # what a search chose is one of the settings that it tried
        for row, tried in study.grid.items():
            assert any(setting.items() <= study.rows[row].items() for setting in tried)


def test_the_table_of_mcan(tmp_path):
    rows = ("soft", "WC", "question only")
    means, report, source = table(tmp_path, "vqa-digits", rows=rows, changes=CHANGES | {"learning_rate": 0.01})
    assert source.command.startswith("python -m experiments.vqa table vqa-digits --seeds 2 --rows")
    main, claims, *blocks = report.parts
    assert [row["row"] for row in main.rows] == [*rows]
    for head, metric, factor in (
        ("accuracy %, clean", "test_accuracy/mean", 100),
        ("accuracy %, noise .5", "test_accuracy/mean/noise_0.5", 100),
        ("NLL, clean", "test_nll/mean", 1),
    ):
        assert main.rows[1][head].mean == pytest.approx(factor * means[f"WC/{metric}"])
        difference = factor * (means[f"WC/{metric}"] - means[f"soft/{metric}"])
        assert main.rows[1][f"{head}: difference"].mean == pytest.approx(difference, abs=1e-9)
    # noise on the regions is in units of their spread, and blank ones have none
    for row, same in (("soft", False), ("question only", True)):
        clean, noisy = (means[f"{row}/test_nll/mean{end}"] for end in NOISE.values())
        assert (noisy == pytest.approx(clean, rel=1e-6)) == same
    folders = {row: [tmp_path / "out" / "runs" / f"{row}-{seed}" for seed in (0, 1)] for row in ("soft", "WC")}
    found = {row: [read_metrics(folder) for folder in paths] for row, paths in folders.items()}
    certain = fmean(one["test_pavpu_05/both"] for one in found["WC"])
    certain -= fmean(one["test_pavpu_05/mc_dropout"] for one in found["soft"])
    assert claims.rows[1]["number"].mean == pytest.approx(100 * certain)
    tables = {part.title: part.rows for part in blocks}
    (guess,) = {row["majority"].mean for row in tables["Accuracy % by kind of question"]}
    assert guess == pytest.approx(100 * means["soft/majority_accuracy"])
    assert {"where", "chain"} <= tables["Accuracy % by kind of question"][0].keys()
    for noise, end in NOISE.items():
        (weibull,) = tables[f"Samples of the attention alone; {noise}"]
        assert weibull["NLL"].mean == pytest.approx(means[f"WC/test_nll/attention{end}"])
        assert [row["row"] for row in tables[f"Samples of attention and dropout; {noise}"]] == ["WC"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_end_to_end(name, tmp_path):
    write_easy_vqa(tmp_path)
    write_daquar(tmp_path)
    write_vqa_v2(tmp_path)
    photographs = STUDIES[name].options.get("dataset") in ("easy_vqa", "daquar")
    own = {"encoder": "own", "encoder_epochs": 1} if photographs else {}
    means, report, _ = table(tmp_path, name, changes=CHANGES | own, seeds=1)
    assert all(any(key.endswith(f"{row}/test_nll/mean") for key in means) for row in STUDIES[name].rows)
    assert {column.name for column in STUDIES[name].columns} <= report.parts[0].rows[0].keys()
    assert {block.title for block in STUDIES[name].blocks} <= {part.title for part in report.parts}


def finished(name, runs):
    """A study with these metrics, by row."""
    metrics = {(row, "", seed): found for row, seeds in runs.items() for seed, found in enumerate(seeds)}
    configs = dict.fromkeys(metrics)
    return Finished(STUDIES[name], name, None, None, configs, metrics)


def verdicts(name, runs):
    return [row["verdict"] for part in STUDIES[name].parts(finished(name, runs)) for row in part.rows]


def bam(noisy, certain):
    """Metrics of some seeds: accuracy with noise, .7 without, and a PAvPU."""
    return [
        {f"test_accuracy/mean{end}": accuracy if end else 0.7 for end in NOISE.values()}
        | {f"test_pavpu_05/{kind}{end}": pavpu for kind in ("mc_dropout", "both") for end in NOISE.values()}
        for accuracy, pavpu in zip(noisy, certain, strict=True)
    ]


@pytest.mark.parametrize(
    ("noisy", "certain", "verdict"),
    [
        ((0.55, 0.56, 0.55), (0.80, 0.81, 0.80), "holds"),
        ((0.45, 0.46, 0.45), (0.60, 0.61, 0.60), "does not hold"),
        ((0.40, 0.60, 0.51), (0.69, 0.71, 0.70), "cannot be told"),
    ],
)
def test_claims_on_noise_and_certainty(noisy, certain, verdict):
    soft = bam((0.5, 0.5, 0.5), (0.7, 0.7, 0.7))
    assert verdicts("vqa-digits", {"soft": soft, "WC": bam(noisy, certain)}) == [verdict] * 3


@pytest.mark.parametrize(("shift", "verdict"), [(0.1, "holds"), (-0.1, "does not hold"), (0.0, "cannot be told")])
def test_claims_on_one_number(shift, verdict):
    spread = (-0.01, 0.0, 0.012)
    nll = {
        "soft": [{"test_nll/mean": 1.0} for _ in spread],
        "marginal": [{"test_nll/mean": 1 + one - shift} for one in spread],
    }
    assert verdicts("vqa-alignments-digits", nll) == [verdict]
    moved = [0.5 + one + shift for one in spread]
    views = {
        "softmax": [{"test_accuracy/mean": 0.5} for _ in spread],
        "doubly_normalized": [{"test_accuracy/mean": one} for one in moved],
        "hybrid": [{"hybrid_view.1": one, "hybrid_view.2": one} for one in moved],
    }
    assert verdicts("vqa-views-digits", views) == [verdict] * 3
    one_seed = {row: seeds[:1] for row, seeds in nll.items()}
    assert verdicts("vqa-alignments-digits", one_seed) == []


def test_uncertainty_of_wrong_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "RESAMPLES", 10)
    options = {"levels": ("1",), "changes": CHANGES | {"learning_rate": 0.01}}
    means, report, _ = table(tmp_path, "vqa-studies-digits", **options)
    assert means["1/soft/train_questions"] == len(few_digits(1)["train"])
    tables = {part.title: {row["row"]: row for row in part.rows} for part in report.parts if part.rows}
    wrong = tables["Does uncertainty tell wrong answers from right ones?"]
    assert wrong["WC: attention"]["entropy"].mean == pytest.approx(means["1/WC/test_auroc_entropy/attention"])
    # the mutual information of an ensemble, by hand
    folders = [tmp_path / "out" / "runs" / f"1-soft-{seed}" for seed in (0, 1)]
    samples = torch.stack([torch.from_numpy(np.load(folder / "predictions.npz")["mean"]) for folder in folders])
    mean, answers, test = samples.mean(0), load_words(folders[0]).answers, few_digits(1)["test"]
    chosen = zip(mean.argmax(-1), test.answers, strict=True)
    missed = [vqa_accuracy(answers[place], votes) < 0.5 for place, votes in chosen]
    mutual = torch.special.entr(mean).sum(-1) - torch.special.entr(samples).sum(-1).mean(0)
    found = wrong["soft: ensemble of 2 seeds"]["mutual information"]
    assert found.mean == pytest.approx(roc_auc_score(missed, mutual), abs=0.01)  # where rounding makes ties
    absent = tables["Questions about what is not in the scene"]["WC: attention and dropout"]
    assert absent["entropy"].mean == pytest.approx(means["1/WC/test_absent_auroc_entropy/both"])
    (tmp_path / "out" / "runs" / "1-WC-0" / "predictions.npz").unlink()
    with pytest.raises(UserError, match=r"predictions\.npz is missing"):
        table(tmp_path, "vqa-studies-digits", **options, resume=True)


def test_bootstrap_intervals():
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(400, generator=generator) < 0.4
    chance, perfect = torch.rand(400, generator=generator), wrong.double()
    assert str(bootstrap([(perfect + 0.1 * chance, wrong)])) == "1.000 [1.000, 1.000]"
    found = bootstrap([(chance, wrong)])
    assert found.low < 0.5 < found.high
    # the standard error of an area of .5 is sqrt((m + n + 1) / (12 m n))
    positive = wrong.sum().item()
    error = (401 / (12 * positive * (400 - positive))) ** 0.5
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.25)
    assert bootstrap([(chance, torch.zeros(400, dtype=torch.bool))]) == "-"
