"""What every study declares: options and rows that there are, and settings that a search has tried."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from experiments.captioning.studies import STUDIES as CAPTIONING_STUDIES
from experiments.coverage.studies import STUDIES as COVERAGE_STUDIES
from experiments.finetune.studies import QA_STUDIES
from experiments.finetune.studies import STUDIES as GLUE_STUDIES
from experiments.graph.studies import STUDIES as GRAPH_STUDIES
from experiments.headlines.train import STUDIES as HEADLINE_STUDIES
from experiments.neural_process.train import NEURAL_PROCESS
from experiments.nmt.studies import STUDIES as TRANSLATION_STUDIES
from experiments.pretrain.train import STUDIES as PRETRAIN_STUDIES
from experiments.study import Study
from experiments.vqa.studies import STUDIES as VQA_STUDIES

_TASKS = (
    CAPTIONING_STUDIES, COVERAGE_STUDIES, GLUE_STUDIES, GRAPH_STUDIES, HEADLINE_STUDIES, PRETRAIN_STUDIES, QA_STUDIES,
    TRANSLATION_STUDIES, VQA_STUDIES, {"": NEURAL_PROCESS},
)  # fmt: skip
ALL = {study.name: study for studies in _TASKS for study in studies.values()}


@cache
def glossary() -> list[str]:
    """Patterns of the metrics that docs/metrics.md explains."""
    page = Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text()
    sections = re.split("^#+ ", page, flags=re.M)
    names = {
        section.partition("\n")[0]: re.findall("`([^`]+)`", "\n".join(re.findall(r"^\|(.*?)\|", section, re.M)))
        for section in sections
    }
    scores = names.pop("Scores of class probabilities")
    plain = [name for some in names.values() for name in some]
    plain += [
        f"{before}{score}{behind}" for score in scores for before, behind in (("test_KIND_", ""), ("test_", "/WHERE"))
    ]
    return [re.sub("[A-Z]{3,}|(?<=_)N", ".+", name) for name in plain]


@pytest.mark.parametrize("study", ALL.values(), ids=ALL)
def test_a_study_declares_options_and_rows_that_there_are(study: Study) -> None:
    known = {field.name for field in fields(study.task.config)}
    assert {*study.named, *study.seeded, *(option for cell in study.cells.values() for option in cell)} <= known
    needed = {"model": "bert"} if "model" in study.named else {}
    for level in study.levels.values():
        for row in (study.base, *study.rows.values()):
            study.task.config(**{**study.options, **level, **row, **needed})
    assert {*study.against, *study.against.values(), *study.paper, *study.shows.values()} <= study.rows.keys()
    columns = [*study.columns, *study.more, *study.quality, *(one for block in study.blocks for one in block.columns)]
    columns += [one for some in study.level_columns.values() for one in some]
    for metric in {column.metric.replace("{kind}", "mean") for column in columns}:
        assert any(re.fullmatch(pattern, metric) for pattern in glossary()), metric
    for row, settings in study.grid.items():
        assert any(setting.items() <= study.rows[row].items() for setting in settings)
