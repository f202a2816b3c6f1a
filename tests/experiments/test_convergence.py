"""Whether trainings had stopped improving, from the histories of a study without a network."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.convergence import best_so_far, convergence, quarters
from experiments.files import UserError
from experiments.report.figures import learning_curves
from experiments.study import Finished, Study
from experiments.vqa.studies import STUDIES
from tests.pictures import faults

STOPPED = [4.0, 3.0, 2.0, 2.5, 2.0, 2.1, 2.2, 2.3]
IMPROVES = [4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5]


def finished(folder: Path, *, firsts: bool = False) -> Finished:
    """A study of two rows and two seeds whose trainings left the histories above."""
    study: Study = replace(STUDIES["vqa-views-digits"], rows={"soft": {}, "WC": {}}, title="Made", heads=("row", ""))
    configs = {}
    for row, values in {"soft": STOPPED, "WC": IMPROVES, "base": STOPPED}.items():
        for seed in (0, 1):
            out = folder / f"{row}-{seed}"
            out.mkdir()
            lines = [f"{epoch},{value + seed},1.0" for epoch, value in enumerate(values)]
            (out / "history.csv").write_text("\n".join(["epoch,val_loss,loss", *lines]) + "\n")
            configs[row, "", seed] = SimpleNamespace(out=out)
    bases = {("", seed): configs.pop(("base", "", seed)) for seed in (0, 1)}
    return Finished(study, "made", folder, None, configs, {}, bases if firsts else {})


def test_quarters_are_of_the_epochs_and_keep_the_best():
    assert quarters(best_so_far(STOPPED)) == [3.0, 2.0, 2.0, 2.0]
    assert quarters(best_so_far(IMPROVES)) == [3.5, 2.5, 1.5, 0.5]
    assert quarters(best_so_far(STOPPED, better="higher")) == [4.0] * 4
    assert quarters([1.0]) == [1.0] * 4


@pytest.mark.parametrize(("better", "best"), [("lower", [4.0, 4.0, 2.0, 2.0]), ("higher", [4.0, 4.0, 4.0, 6.0])])
def test_an_epoch_of_nan_is_never_the_best(better, best):
    """As when the weights are kept, and epochs behind it are."""
    assert best_so_far([4.0, float("nan"), 2.0, 6.0], better=better).tolist() == best


def test_higher_may_be_better(tmp_path):
    (part,) = convergence(finished(tmp_path), better="higher", name="accuracy")
    soft, _ = part.rows  # its largest value comes first
    assert [soft[f"accuracy, {quarter}"].mean for quarter in ("1/4", "1/2", "3/4", "end")] == [4.5] * 4
    assert soft["best epoch"].mean == 1


def test_the_table_tells_a_training_that_stopped_from_one_that_improves(tmp_path):
    (part,) = convergence(finished(tmp_path))
    soft, wc = part.rows
    assert [soft["row"], wc["row"]] == ["soft", "WC"]
    assert soft["gain of the last quarter"].mean == pytest.approx(0.0)
    assert wc["gain of the last quarter"].mean == pytest.approx(1.0)
    # mean over the seeds, whose losses differ by one
    assert [soft[f"validation loss, {quarter}"].mean for quarter in ("1/4", "1/2", "3/4", "end")] == [
        3.5,
        2.5,
        2.5,
        2.5,
    ]
    assert (soft["best epoch"].mean, wc["best epoch"].mean, soft["epochs"].mean) == (3, 8, 8)
    assert part.picture is not None
    assert part.picture.is_file()


def test_the_training_that_rows_go_on_from_comes_first(tmp_path):
    (part,) = convergence(finished(tmp_path, firsts=True))
    assert [row["row"] for row in part.rows] == ["what all go on from", "soft", "WC"]


def test_trainings_too_short_for_quarters_are_left_out(tmp_path):
    """Of one epoch, the last quarter would gain nothing, as of one that had stopped."""
    study = finished(tmp_path)
    for folder in tmp_path.glob("WC-*"):
        (folder / "history.csv").write_text("epoch,val_loss,loss\n0,4.0,1.0\n")
    (part,) = convergence(study)
    assert [row["row"] for row in part.rows] == ["soft"]
    assert part.text.endswith("not shown: WC.")
    for folder in tmp_path.glob("soft-*"):
        (folder / "history.csv").write_text("epoch,val_loss,loss\n0,4.0,1.0\n")
    assert not list(convergence(study))


def test_a_missing_history_is_a_named_error(tmp_path):
    study = finished(tmp_path)
    (tmp_path / "WC-1" / "history.csv").unlink()
    with pytest.raises(UserError, match=r"history\.csv.*overwrite"):
        list(convergence(study))


@pytest.mark.parametrize("levels", [[""], ["cora", "citeseer"]])
def test_learning_curves_can_be_read(levels):
    rows = {f"row {number}": [STOPPED, IMPROVES[:5]] for number in range(8)}
    figure = learning_curves(dict.fromkeys(levels, rows), name="best validation loss so far", title="Made of nothing")
    assert faults(figure) == []
    ends = [line.get_ydata()[-1] for line in figure.axes[0].get_lines()]
    assert ends == [(2.3 + 2.0) / 2] * 8  # a training that ended early keeps its last value


def test_a_history_without_the_metric_is_a_named_error(tmp_path):
    with pytest.raises(UserError, match=r"soft-0/history\.csv has no val_score; train again"):
        list(convergence(finished(tmp_path), metric="val_score"))
