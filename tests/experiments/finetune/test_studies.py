"""What studies of fine-tuned transformers publish, on a tiny random BERT."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.finetune import studies
from experiments.finetune.studies import QA_STUDIES
from experiments.harness.options import StudyOptions
from experiments.report.report import read_results
from experiments.study import Finished

TINY = {"max_epochs": 1, "num_samples": 2, "batch_size": 20, "length": 20}


def options(place: Path, out: Path, **given: Any) -> StudyOptions:
    how: dict[str, Any] = {"data_root": place, "out": out / "out", "results": out, "workers": 1, "progress": False}
    changes = {"model": str(place / "some" / "bert"), **TINY}
    return StudyOptions(**how | {"name": "glue", "seeds": 1, "rows": ("soft", "WC"), "changes": changes} | given)


def test_tasks_of_glue_have_their_own_metrics(place: Path, tmp_path: Path) -> None:
    means = studies.table(options(place, tmp_path, levels=("mrpc", "stsb")))
    report, source = read_results(next(tmp_path.glob("glue-*.json")))
    assert report.title.startswith("GLUE with bert, ")
    assert f"--model {place}/some/bert" in source.command
    main, scores, _, at_mean, _ = report.parts
    rows = {row["row"]: row for row in main.rows}
    assert list(rows) == ["soft", "MC dropout", "WC"]
    kinds = (("soft", "soft", "mean"), ("MC dropout", "soft", "mc_dropout"), ("WC", "WC", "attention"))
    for row, trained, kind in kinds:
        for column, metric in (("mrpc F1 %", "mrpc/{}/test_{}_f1"), ("stsb Pearson %", "stsb/{}/test_{}_pearson")):
            assert rows[row][column].mean == pytest.approx(100 * means[metric.format(trained, kind)])
    assert rows["WC"]["stsb paper"] == "91.1"
    assert scores.rows[2]["NLL"].mean == pytest.approx(means["mrpc/WC/test_attention_nll"])
    assert at_mean.rows[2]["F1 %"].mean == pytest.approx(100 * means["mrpc/WC/test_mean_f1"])


def test_intervals_over_questions_are_those_of_resampled_answers(tmp_path: Path) -> None:
    """The standard error of the mean over seeds of the difference."""
    generator = np.random.default_rng(1)
    study = replace(QA_STUDIES["squad-v1"], rows={row: {} for row in ("soft", "WC")}, shows={})
    configs, scores = {}, {}
    for key in [(row, "", seed) for row in study.rows for seed in (0, 1)]:
        folder, kind = tmp_path / "-".join(map(str, key)), study.kinds.get(key[0], "mean")
        folder.mkdir()
        scores[key] = generator.random((2, 300))
        np.savez(folder / "predictions.npz", **dict(zip((f"{kind}_exact", f"{kind}_f1"), scores[key], strict=True)))
        configs[key] = replace(options(tmp_path, tmp_path), out=folder)
    (part,) = studies.over_questions(Finished(study, "squad-v1", tmp_path, tmp_path, configs, {}))
    found = part.rows[0]["F1 %"]
    difference = 50 * sum(scores["WC", "", seed][1] - scores["soft", "", seed][1] for seed in (0, 1))
    error = 1.96 * difference.std() / 300**0.5
    assert found.mean == pytest.approx(difference.mean())
    assert (found.low, found.high) == pytest.approx((found.mean - error, found.mean + error), abs=0.15 * error)
