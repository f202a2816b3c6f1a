"""What studies of fine-tuned transformers publish, on a tiny random BERT."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.files import UserError
from experiments.finetune import studies
from experiments.finetune.studies import STUDIES
from experiments.harness.options import StudyOptions
from experiments.report.results import read_results
from experiments.study import Finished

TINY = {"max_epochs": 1, "num_samples": 2, "batch_size": 20, "length": 20}


def options(place: Path, out: Path, **given: Any) -> StudyOptions:
    how: dict[str, Any] = {"data_root": place, "out": out / "out", "results": out, "workers": 1, "progress": False}
    changes = {"model": str(place / "some" / "bert"), **TINY}
    return StudyOptions(**how | {"name": "glue", "seeds": 1, "rows": ("soft", "WC"), "changes": changes} | given)


def test_tasks_of_glue_have_their_own_metrics_and_two_intervals(place: Path, tmp_path: Path) -> None:
    means = studies.table(options(place, tmp_path, levels=("mrpc", "stsb")))
    report, source = read_results(next(tmp_path.glob("glue-*.json")))
    assert report.title.startswith("GLUE with bert, ")
    assert f"--model {place}/some/bert" in source.command
    main, items, mean, *scores = report.parts
    rows = {row["row"]: row for row in main.rows}
    assert list(rows) == ["soft", "MC dropout", "WC"]
    assert [row["row"] for row in mean.rows] == ["soft", "WC"]
    kinds = (("soft", "soft", "mean"), ("MC dropout", "soft", "mc_dropout"), ("WC", "WC", "attention"))
    for row, trained, kind in kinds:
        for column, metric in (("mrpc F1 %", "mrpc/{}/test_{}_f1"), ("stsb Pearson %", "stsb/{}/test_{}_pearson")):
            assert rows[row][column].mean == pytest.approx(100 * means[metric.format(trained, kind)])
    assert rows["WC"]["stsb paper"] == "91.1"
    assert scores[0].rows[2]["NLL"].mean == pytest.approx(means["mrpc/WC/test_attention_nll"])
    # differences over items are those over seeds
    for row, of_items in zip(main.rows[1:], items.rows, strict=True):
        for head, cell in list(of_items.items())[1:]:
            assert cell.mean == pytest.approx(row[f"{head}: difference"].mean, abs=1e-4)
            assert (cell.over, cell.against, cell.data) == ("items", "soft", head.split()[0])
    # a run whose predictions are gone is told of
    (tmp_path / "out" / "runs" / "mrpc-WC-0" / "predictions.npz").unlink()
    with pytest.raises(UserError, match="remove its folder, and the same command with --resume"):
        studies.table(options(place, tmp_path, levels=("mrpc", "stsb"), resume=True))


def test_intervals_over_items_are_those_of_resampled_predictions(tmp_path: Path) -> None:
    """The mean over seeds of the difference of F1, resampled; classes by the mean of the probabilities."""
    generator = np.random.default_rng(1)
    study = replace(STUDIES["glue"], rows={row: {} for row in ("soft", "WC")}, shows={}, levels={"mrpc": {}})
    labels, configs, logits = generator.integers(0, 2, 30), {}, {}
    for key in [(row, "mrpc", seed) for row in study.rows for seed in (0, 1)]:
        folder = tmp_path / "-".join(map(str, key))
        folder.mkdir()
        logits[key] = 3 * generator.normal(size=(3, 30, 2))
        arrays: dict[str, Any] = {f"{study.kinds.get(key[0], 'mean')}_test": logits[key], "labels_test": labels}
        np.savez(folder / "predictions.npz", **arrays)
        configs[key] = replace(options(tmp_path, tmp_path), out=folder)
    metrics = {key: {f"test_{study.kinds.get(key[0], 'mean')}_f1": 0.0} for key in configs}
    finished = Finished(study, "glue", tmp_path, tmp_path, configs, metrics)
    (row,) = studies.over_items(finished, studies._example_scores, "examples").rows
    probabilities = {key: np.exp(one) / np.exp(one).sum(-1, keepdims=True) for key, one in logits.items()}
    classes = {key: one.mean(0).argmax(-1) for key, one in probabilities.items()}

    def difference(places: Any) -> float:
        f1 = {key: 200 * (labels * one)[places].sum() / (labels + one)[places].sum() for key, one in classes.items()}
        return float(np.mean([f1["WC", "mrpc", seed] - f1["soft", "mrpc", seed] for seed in (0, 1)]))

    drawn = [difference(np.repeat(np.arange(30), count.astype(int))) for count in studies.resamples(30)[1:]]
    found = row["mrpc F1 %"]
    assert found.mean == pytest.approx(difference(np.arange(30)))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))))
