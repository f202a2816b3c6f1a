"""The table of headlines: its rows, what they are compared with, and headlines that do not fit the texts."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.files import UserError
from experiments.harness.options import StudyOptions
from experiments.headlines.config import HeadlineConfig
from experiments.headlines.data import load_texts
from experiments.headlines.evaluation import lead_baseline
from experiments.headlines.studies import STUDIES, table
from experiments.report.results import read_results
from experiments.report.statistics import paired_difference
from tests.experiments.headlines.tiny_headlines import TINY, write_texts


def test_every_study_declares_options_and_rows_that_there_are() -> None:
    for name, study in STUDIES.items():
        assert study.name == name
        for row in study.rows.values():
            HeadlineConfig(**{**study.options, **row})
        assert {*study.against, *study.against.values(), *study.paper} <= study.rows.keys()


def test_table(tmp_path: Path) -> None:
    root, changes = write_texts(tmp_path / "data"), TINY | {"lead_words": 3, "max_epochs": 1, "precision": "32"}
    del changes["progress"]
    options = StudyOptions(
        name="headlines", rows=("softmax, soft", "softmax, weibull", "hybrid, weibull"), seeds=2, workers=1,
        progress=False, data_root=root, out=tmp_path / "out", results=tmp_path / "results", changes=changes,
    )  # fmt: skip
    means = table(options)
    # what a row has written: in one seed what people wrote, in the other one nothing of it
    test, runs = load_texts(HeadlineConfig(data_root=root))["test"], tmp_path / "out" / "runs"
    for seed, headlines in enumerate(([people[0] for people in test.headlines], ["#"] * len(test))):
        (runs / f"hybrid-weibull-{seed}" / "summaries.txt").write_text("".join(f"{line}\n" for line in headlines))
    assert table(replace(options, resume=True)) == pytest.approx(means)
    report, source = read_results(next((tmp_path / "results").glob("*.json")))
    assert source.command.startswith("python -m experiments.headlines table headlines --seeds 2 --rows")
    rows = {row["attention"]: row for row in report.parts[0].rows}
    assert {name: row["compared with"] for name, row in rows.items()} == {
        "softmax, soft": "", "softmax, weibull": "softmax, soft", "hybrid, weibull": "softmax, weibull",
    }  # fmt: skip
    assert rows["hybrid, weibull"]["perplexity: difference"].mean == pytest.approx(
        means["hybrid, weibull/test_ppl"] - means["softmax, weibull/test_ppl"]
    )
    assert rows["softmax, soft"]["paper"] == "38.02 / 18.93 / 35.25"
    # the first words, text by text
    beyond, hybrid = report.parts[1:]
    baseline = lead_baseline(test, 3)["rouge_1"]
    assert beyond.rows[0]["ROUGE-1"].mean == pytest.approx(sum(baseline) / len(baseline))
    found, expected = beyond.rows[-1]["ROUGE-1"], paired_difference([50.0] * len(test), baseline)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    # all heads of hybrid attention
    assert [row["attention"] for row in hybrid.rows] == ["hybrid, weibull"]
    assert hybrid.rows[0]["layer 1, head 1"].mean == pytest.approx(means["hybrid, weibull/hybrid_layers.1_1"])
    (runs / "softmax-soft-1" / "summaries.txt").write_text("one\n")
    with pytest.raises(UserError, match="softmax-soft-1 has headlines of 1 texts, expected 6; remove it"):
        table(replace(options, resume=True))
