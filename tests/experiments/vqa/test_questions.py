"""The questions of a run by its options, and what is right without a look."""

import pytest
import torch

from experiments.datasets.questions.data import Questions, Regions
from experiments.files import UserError
from experiments.vqa.baselines import baselines
from experiments.vqa.config import VQAConfig
from experiments.vqa.data import Answered, Words, load_questions
from tests.experiments.datasets.questions.tiny_questions import write_easy_vqa, write_vqa_v2


def asked(*rows):
    regions = Regions(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))
    questions, answers = zip(*[(text.split(), votes) for text, votes in rows], strict=True)
    return Questions("x", questions, answers, torch.zeros(len(rows), dtype=torch.long), regions, ["k"] * len(rows))


def test_baselines():
    train = asked(
        ("is there a cat", {"yes": 10}), ("is there a dog", {"yes": 6, "no": 4}), ("is there food", {"no": 10}),
        ("how many cats", {"2": 10}), ("how many dogs", {"two": 7, "3": 3}),
    )  # fmt: skip
    test = asked(
        ("is there a bird", {"yes": 10}), ("how many birds", {"2": 10}), ("how many rooms", {"2": 2, "3": 8}),
        ("what color is it", {"2": 10}),
    )  # fmt: skip
    assert baselines({"train": train, "test": test}) == pytest.approx({"majority": 2.6 / 4, "form": 3.6 / 4})


def test_photographs_by_option(tmp_path):
    write_easy_vqa(tmp_path)
    config = VQAConfig(
        dataset="easy_vqa", data_root=tmp_path, encoder_epochs=1, progress=False, questions=4, test_questions=3
    )
    data = load_questions(config)
    assert {part: len(found) for part, found in data.items()} == {"train": 4, "val": 3, "test": 3}
    batch = next(Answered(data["train"], Words.of(data["train"], answers=9), "single").batches(torch.device("cpu")))
    assert batch.regions.shape == (4, 16, 264)
    assert batch.regions.dtype == torch.float32


def test_blind_models_see_blank_regions(tmp_path):
    write_vqa_v2(tmp_path)
    options = {"dataset": "vqa_v2", "data_root": tmp_path, "progress": False}
    seen, blind = (load_questions(VQAConfig(**options, blind=blind))["train"] for blind in (False, True))
    assert seen.regions.features.any()
    assert not blind.regions.features.any()
    assert blind.regions.features.shape == seen.regions.features.shape
    assert torch.equal(blind.regions.mask, seen.regions.mask)
    assert blind.questions == seen.questions
    assert blind.regions.spread == 0 < seen.regions.spread


def test_several_views_of_photographs():
    with pytest.raises(UserError, match="model is multi_view, but daquar has one view; take digits or another model"):
        load_questions(VQAConfig(dataset="daquar", model="multi_view"))


def test_encoders_that_need_torchvision(tmp_path, monkeypatch):
    import sys

    write_easy_vqa(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(UserError, match="torchvision cannot be imported"):
        load_questions(VQAConfig(dataset="easy_vqa", encoder="mobilenet_v2", data_root=tmp_path, progress=False))
