"""The table on questions, end to end on a tiny random BERT."""

import numpy as np
import pytest

from experiments.files import UserError
from experiments.finetune import rows as known
from experiments.finetune.qa.config import QaTableConfig
from experiments.finetune.qa.table import run as table
from tests.experiments.finetune.tiny_glue import write_bert
from tests.experiments.finetune.tiny_squad import write_squad


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of a tiny table in this process."""
    # length, stride and batch size are no options of tables
    tiny = {"length": 20, "stride": 8, "batch_size": 20}
    monkeypatch.setattr("experiments.finetune.runs.ROWS", {row: one | tiny for row, one in known.ROWS.items()})
    return {
        "model": str(write_bert(tmp_path / "bert")), "data_root": write_squad(tmp_path), "out": tmp_path / "out",
        "results": tmp_path / "RESULTS.md", "max_epochs": 1, "num_samples": 2, "workers": 1, "progress": False,
        "rows": ("soft", "WC"),
    }  # fmt: skip


@pytest.mark.parametrize("task", ["v1", "v2"])
def test_table(task, options, capsys):
    config = QaTableConfig(**options, task=task, seeds=2, train_share=0.5)
    means = table(config)
    page = options["results"].read_text()
    assert f"<!-- begin squad-{task}-bert -->" in page
    assert f"`python -m experiments.finetune qa-table {task} --model" in page
    for part in ("MC dropout", "88.70" if task == "v1" else "82.07", "50% of the training questions", "WC: kl weight"):
        assert part in page
    sections = page.split("### ")
    scores, differences, mean = ([line.split("|") for line in one.splitlines() if "|" in line] for one in sections[1:])
    assert [line[1].strip() for line in scores[2:5]] == ["soft", "MC dropout", "WC"]
    assert ("HasAns F1 %" in sections[1]) == ("NoAns %" in sections[1]) == (task == "v2")
    assert [line[1].strip() for line in differences[2:]] == ["MC dropout", "WC"]
    assert [line[1].strip() for line in mean[2:]] == ["soft", "WC"]
    # the difference is that of the means, with an interval over seeds and one over questions
    f1 = {row: means[f"{row}/test_{kind}_f1"] for row, kind in (("soft", "mean"), ("WC", "attention"))}
    for cell in differences[-1][4:6]:
        value, interval = cell.strip().split(" ", 1)
        assert float(value) == pytest.approx(100 * (f1["WC"] - f1["soft"]), abs=0.006)
        assert interval.startswith("[")
    # nothing is trained again; predictions that are none of this script's are told of
    path = options["out"] / "runs" / "WC-0" / "predictions.npz"
    np.savez(path, attention_exact=np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"predictions\.npz cannot be read \(ValueError: scores float64\[2, 2\]\)"):
        table(QaTableConfig(**options, task=task, seeds=2, train_share=0.5, resume=True))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rows": ("WC",)}, "expected soft too"), ({"model": ""}, "model is missing"), ({"seeds": 0}, "seeds")],
)
def test_bad_options(options, changes, message):
    with pytest.raises(UserError, match=message):
        table(QaTableConfig(**({"task": "v1"} | options | changes)))
