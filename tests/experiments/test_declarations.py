"""What every study declares: options and rows that there are, and settings that a search has tried."""

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from experiments.captioning.studies import STUDIES as CAPTIONING_STUDIES
from experiments.captioning.studies import search as captioning_search
from experiments.coverage.studies import STUDIES as COVERAGE_STUDIES
from experiments.finetune.studies import QA_STUDIES, RACE_STUDIES
from experiments.finetune.studies import STUDIES as GLUE_STUDIES
from experiments.finetune.studies import search as glue_search
from experiments.graph.studies import STUDIES as GRAPH_STUDIES
from experiments.graph.studies import search as graph_search
from experiments.headlines.studies import STUDIES as HEADLINE_STUDIES
from experiments.neural_process.studies import NEURAL_PROCESS
from experiments.nmt.studies import STUDIES as TRANSLATION_STUDIES
from experiments.options import unused
from experiments.pretrain.studies import STUDIES as PRETRAIN_STUDIES
from experiments.reasons.studies import STUDIES as REASON_STUDIES
from experiments.study import Block, Search, Study
from experiments.vqa.studies import STUDIES as VQA_STUDIES
from experiments.vqa.studies import search as vqa_search

_TASKS = (
    CAPTIONING_STUDIES, COVERAGE_STUDIES, GLUE_STUDIES, GRAPH_STUDIES, HEADLINE_STUDIES, PRETRAIN_STUDIES, QA_STUDIES,
    RACE_STUDIES, REASON_STUDIES, TRANSLATION_STUDIES, VQA_STUDIES, {"": NEURAL_PROCESS},
)  # fmt: skip
_SEARCHES = (captioning_search, glue_search, graph_search, vqa_search)
SEARCHES = [search for searches in _SEARCHES for search in searches.args[0].values()]
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
    assert {*study.task.named} <= {field.name for field in fields(study.task.config)}
    needed = {"model": "bert"} if "model" in study.task.named else {}
    for level, of_level in study.levels.items():
        assert {name for name, value in of_level.items() if isinstance(value, Mapping)} <= study.rows.keys()
        for row in (None, *study.rows):
            study.task.config(**study.training(level, row, 3, Path("first")) | needed)
    shown = {of for row, (of, _) in study.readings.items() if of != row}
    assert {*study.baselines, *study.baselines.values(), *study.paper, *shown} <= study.rows.keys()
    blocks = [part for part in study.parts if isinstance(part, Block)]
    columns = [*study.columns, *(one for block in blocks for one in block.columns)]
    assert {level for column in columns for level in column.levels} <= study.levels.keys()
    for metric in {column.metric.replace("{kind}", "mean") for column in columns}:
        assert any(re.fullmatch(pattern, metric) for pattern in glossary()), metric


@pytest.mark.parametrize("study", ALL.values(), ids=ALL)
def test_the_text_of_a_study_tells_what_it_uses(study: Study) -> None:
    needed = {"model": "bert"} if "model" in study.task.named else {}
    configs = [
        study.task.config(**study.training(level, row, 3, Path("first")) | needed)
        for level in study.levels
        for row in study.rows
    ]
    for option in re.findall(r"\{config\.(\w+)", study.text):
        assert any(option not in {name for name, _, _ in unused(config)} for config in configs), option
    shares = {getattr(config, "train_share", 1.0) for config in configs}
    if len(shares) == 1 and shares != {1.0}:  # not an axis of the study
        assert "{config.train_share:.0%}" in study.text


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.study.name)
def test_a_row_has_settings_that_were_searched(search: Search) -> None:
    for row, settings in search.grid.items():
        assert any(setting.items() <= search.study.rows[row].items() for setting in settings)
    for column in search.quality:
        assert any(re.fullmatch(pattern, column.metric) for pattern in glossary()), column.metric
