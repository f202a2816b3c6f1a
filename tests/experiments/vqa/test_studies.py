"""What studies on questions publish, on tiny scenes: claims, and what uncertainty is worth."""

from statistics import fmean

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from experiments.folder import read_metrics
from experiments.options import StudyOptions
from experiments.report.report import read_results
from experiments.study import Finished
from experiments.vqa import studies
from experiments.vqa.model import load_words
from experiments.vqa.studies import NOISE, STUDIES, bootstrap
from tests.experiments.vqa.tiny_questions import TINY, few_digits

CHANGES = {name: value for name, value in TINY.items() if name != "progress"} | {"learning_rate": 0.01}


def table(folder, name, **given):
    """Train the rows of a study: the means of their metrics, and what it publishes."""
    how = {"seeds": 2, "workers": 1, "progress": False, "data_root": folder, "changes": CHANGES}
    how |= {"out": folder / "out", "results": folder / "results"}
    means = studies.table(StudyOptions(name=name, **how | given))
    (path,) = (folder / "results").glob("*.json")
    return means, *read_results(path)


def test_the_table_of_mcan(tmp_path):
    rows = ("soft", "WC", "question only")
    means, report, source = table(tmp_path, "vqa-digits", rows=rows)
    assert source.command.startswith("python -m experiments.vqa table vqa-digits --seeds 2 --rows")
    main, claims, *_ = report.parts
    assert [row["row"] for row in main.rows] == [*rows]
    # noise on the regions is in units of their spread, and blank ones have none
    for row, same in (("soft", False), ("question only", True)):
        clean, noisy = (means[f"{row}/test_nll/mean{end}"] for end in NOISE.values())
        assert (noisy == pytest.approx(clean, rel=1e-6)) == same
    folders = {row: [tmp_path / "out" / "runs" / f"{row}-{seed}" for seed in (0, 1)] for row in ("soft", "WC")}
    found = {row: [read_metrics(folder) for folder in paths] for row, paths in folders.items()}
    certain = fmean(one["test_pavpu_05/both"] for one in found["WC"])
    certain -= fmean(one["test_pavpu_05/mc_dropout"] for one in found["soft"])
    assert claims.rows[1]["number"].mean == pytest.approx(100 * certain)


@pytest.mark.parametrize("rows", [("no attention",), ("no attention", "doubly_normalized")], ids=str)
def test_what_regions_receive(rows, tmp_path):
    """Views that do not attend to each other have no part in it."""
    _, report, _ = table(tmp_path, "vqa-views-heads-digits", rows=rows, seeds=1)
    parts = {part.title: part for part in report.parts}
    attends = len(rows) > 1
    assert ("What keys receive" in parts) == attends
    assert any((tmp_path / "results" / "pictures").glob("*-mass.png")) == attends
    if attends:
        masses = {row["row"]: row for row in parts["Regions that are explained away"].rows}
        assert list(masses) == ["doubly_normalized"]
        assert masses["doubly_normalized"]["explained away %"].mean == 0


def verdicts(name, runs):
    """The verdicts on the claims of a study with these metrics, by row."""
    metrics = {(row, "", seed): found for row, seeds in runs.items() for seed, found in enumerate(seeds)}
    finished = Finished(STUDIES[name], name, None, None, dict.fromkeys(metrics), metrics)
    return [row["verdict"] for part in STUDIES[name].parts[0](finished) for row in part.rows]


def bam(noisy, certain):
    """Metrics of some seeds: accuracy with noise, .7 without, and a PAvPU."""
    return [
        {f"test_accuracy/mean{end}": accuracy if end else 0.7 for end in NOISE.values()}
        | {f"test_pavpu_05/{kind}{end}": pavpu for kind in ("mc_dropout", "both") for end in NOISE.values()}
        for accuracy, pavpu in zip(noisy, certain, strict=True)
    ]


@pytest.mark.parametrize(("shift", "verdict"), [(0.1, "holds"), (-0.1, "does not hold")])
def test_claims(shift, verdict):
    spread = (-0.01, 0.0, 0.012)
    moved = [0.5 + one + shift for one in spread]
    soft = bam((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert verdicts("vqa-digits", {"soft": soft, "WC": bam(moved, moved)}) == [verdict] * 3
    nll = {
        "soft": [{"test_nll/mean": 1.0} for _ in spread],
        "marginal": [{"test_nll/mean": 1 + one - shift} for one in spread],
    }
    assert verdicts("vqa-alignments-digits", nll) == [verdict]
    views = {
        "softmax": [{"test_accuracy/mean": 0.5} for _ in spread],
        "doubly_normalized": [{"test_accuracy/mean": one} for one in moved],
        "hybrid": [{"hybrid_view.1": one, "hybrid_view.2": one} for one in moved],
    }
    assert verdicts("vqa-views-digits", views) == [verdict] * 3
    # with other --test-noise, and with a single sample, fewer of them are measured
    few = [
        {row: [{name: value for name, value in one.items() if kept in name and "noise" not in name} for one in seeds]
         for row, seeds in {"soft": soft, "WC": bam(moved, moved)}.items()}
        for kept in ("pavpu", "accuracy")
    ]  # fmt: skip
    assert [verdicts("vqa-digits", runs) for runs in few] == [[verdict], []]
    one_seed = {row: seeds[:1] for row, seeds in nll.items()}
    assert verdicts("vqa-alignments-digits", one_seed) == []


def test_uncertainty_of_wrong_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "RESAMPLES", 10)
    means, report, _ = table(tmp_path, "vqa-studies-digits", levels=("1",))
    assert means["1/soft/train_questions"] == len(few_digits(1)["train"])
    tables = {part.title: {row["row"]: row for row in part.rows} for part in report.parts if part.rows}
    wrong = tables["Does uncertainty tell wrong answers from right ones?"]
    assert wrong["WC: attention"]["entropy"].mean == pytest.approx(means["1/WC/test_auroc_entropy/attention"])
    # the mutual information of an ensemble, by hand
    folders = [tmp_path / "out" / "runs" / f"1-soft-{seed}" for seed in (0, 1)]
    samples = torch.stack([torch.from_numpy(np.load(folder / "predictions.npz")["mean"]) for folder in folders])
    mean, answers, test = samples.mean(0), load_words(folders[0]).answers, few_digits(1)["test"]
    chosen = zip(mean.argmax(-1), test.answers, strict=True)
    missed = [answers[place] != answer for place, answer in chosen]
    mutual = torch.special.entr(mean).sum(-1) - torch.special.entr(samples).sum(-1).mean(0)
    found = wrong["soft: ensemble of 2 seeds"]["mutual information"]
    assert found.mean == pytest.approx(roc_auc_score(missed, mutual), abs=0.01)  # where rounding makes ties
    absent = tables["Questions about what is not in the scene"]["WC: attention and dropout"]
    assert absent["entropy"].mean == pytest.approx(means["1/WC/test_absent_auroc_entropy/both"])


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
