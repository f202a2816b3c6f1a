"""The table of headlines: its rows, what they are compared with, and more rows later."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.files import UserError
from experiments.harness.results import read_metrics
from experiments.headlines.config import HeadlineTableConfig
from experiments.headlines.data import load_texts
from experiments.headlines.scores import lead_baseline, rouge
from experiments.headlines.table import run
from experiments.report.statistics import paired_difference
from tests.experiments.headlines.tiny_headlines import TINY, write_texts


def cells(page: str, row: str) -> dict[str, str]:
    """A row of the first table of a page, by the heads of its columns."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return dict(zip(lines[0], next(line for line in lines if line[0] == row), strict=True))


def test_table(tmp_path, capsys):
    config = HeadlineTableConfig(
        **TINY | {"max_epochs": 1, "lead_words": 3}, normalizers=("softmax", "hybrid"), guides=("soft",), seeds=2,
        workers=1, out=tmp_path / "out", data_root=write_texts(tmp_path / "data"), results=tmp_path / "RESULTS.md",
    )  # fmt: skip
    means = run(config)
    printed, page = capsys.readouterr().out, (tmp_path / "RESULTS.md").read_text()
    for row in ("softmax, soft", "hybrid, soft"):
        assert means[f"{row}/test_ppl"] > 1
        assert f"\n{row}  " in printed
    assert read_metrics(tmp_path / "out") == pytest.approx(means)
    assert "python -m experiments.headlines table " in page
    assert "| layers.0 | layers.1 |" in page  # hybrid weights
    # compared with softmax, with the first words of the texts, and with the paper
    test = load_texts(config)["test"]
    baseline = lead_baseline(test, 3)["rouge_1"]
    assert cells(page, "the first 3 words")["ROUGE-1"].startswith(f"{sum(baseline) / len(baseline):.2f} [")
    found = cells(page, "hybrid, soft")
    assert found["compared with"] == "softmax, soft"
    assert "[" in found["ROUGE-1: difference"]
    assert found["paper"] == "38.27 / 19.30 / 35.56"
    folders = [tmp_path / "out" / "runs" / f"hybrid-soft-{seed}" for seed in (0, 1)]
    lines = [(folder / "summaries.txt").read_text().split("\n")[:-1] for folder in folders]
    scores = [rouge(one, test.headlines)["rouge_1"] for one in lines]
    mean = [sum(both) / 2 for both in zip(*scores, strict=True)]
    assert found["ROUGE-1: beyond the first words"] == paired_difference(mean, baseline).text()
    # more or fewer rows later; what is there is read
    fewer = replace(config, resume=True, normalizers=("softmax",))
    assert run(fewer)["softmax, soft/test_ppl"] == means["softmax, soft/test_ppl"]
    assert "hybrid" not in (tmp_path / "RESULTS.md").read_text().replace("hybrid begins", "")
    (tmp_path / "out" / "runs" / "softmax-soft-1" / "summaries.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"softmax-soft-1/summaries\.txt has 1 lines, expected 6; remove its folder"):
        run(fewer)


@pytest.mark.parametrize("options", [{"normalizers": ()}, {"guides": ()}])
def test_a_table_without_rows(options, tmp_path):
    with pytest.raises(UserError, match="normalizers or guides is empty"):
        run(HeadlineTableConfig(**options, out=tmp_path))


def test_missing_data(tmp_path):
    with pytest.raises(UserError, match=r"headline-train/gigaword_train_sample\.jsonl is missing"):
        run(HeadlineTableConfig(out=tmp_path / "out", data_root=Path("nowhere")))
    assert not (tmp_path / "out").exists()
