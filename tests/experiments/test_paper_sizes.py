"""Files with the published sizes of networks: their commands take them, and the networks are those of the papers.

The numbers here are read in the papers and written down a second time; networks are built without their weights.
"""

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from experiments.captioning import task as captioning
from experiments.captioning.config import CaptioningConfig
from experiments.cli import Command, run_commands
from experiments.data.images.regions import Regions
from experiments.data.questions.load import Questions
from experiments.finetune.config import GlueConfig, QaConfig, RaceConfig
from experiments.graph import task as graph
from experiments.graph.config import GraphConfig
from experiments.headlines import task as headlines
from experiments.headlines.config import HeadlineConfig
from experiments.nmt import task as nmt
from experiments.nmt.config import TranslationConfig
from experiments.options import StudyOptions, paper_files, parse
from experiments.pretrain import task as pretrain
from experiments.pretrain.config import PretrainConfig
from experiments.vqa import model as vqa
from experiments.vqa.config import VQAConfig
from pyro_attention import MultiheadAttention

ROOT = Path(__file__).parents[2]
CONFIGS = (
    TranslationConfig, CaptioningConfig, VQAConfig, GraphConfig, HeadlineConfig, PretrainConfig, GlueConfig, QaConfig,
    RaceConfig,
)  # fmt: skip
FILES = {path.as_posix(): config for config in CONFIGS for path in paper_files(config).values()}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def needed(config_type, path):
    return [Path(path).stem] if config_type is GlueConfig else []


def config_of(path):
    config_type = FILES[path]
    return config_type(**parse(config_type, [*needed(config_type, path), "--config", path], name="train"))


def test_every_file_is_listed_in_the_help_of_its_command():
    assert sorted(FILES) == sorted(
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/*/paper/*.yaml")
    )


@pytest.mark.parametrize("path", FILES)
def test_a_training_and_a_table_take_the_file(path):
    config_type, text = FILES[path], yaml.safe_load(Path(path).read_text())
    config = config_of(path)
    assert {name: getattr(config, name) for name in text} == text
    options = parse(StudyOptions, ["some-study", "--config", path, "--seeds", "2"], name="table", training=config_type)
    assert {name: options["changes"][name] for name in text} == text
    assert Path(path).read_text().startswith("# ")  # which says where the numbers are read


def test_an_option_behind_the_file_changes_it(tmp_path, capsys):
    (tmp_path / "iwslt14-de-en").mkdir()  # a data set that is not there is noticed first
    given = ["--config", "experiments/nmt/paper/iwslt14.yaml", "--beam", "3", "--data-root", str(tmp_path)]
    options = parse(TranslationConfig, given, name="train")
    assert (options["beam"], options["batch_size"]) == (3, 6)
    found = []
    commands = {"train": Command(TranslationConfig, found.append)}
    assert run_commands(commands, name="experiments.nmt", arguments=["train", *given]) == 0
    assert found[0].decoder_width == 768
    with pytest.raises(SystemExit):
        run_commands(commands, name="experiments.nmt", arguments=["train", "--help"])
    assert "experiments/nmt/paper/iwslt14.yaml" in re.sub(r"\s+", " ", capsys.readouterr().out)


# Networks


@pytest.fixture
def without_weights(monkeypatch):
    for module in (nmt, captioning, vqa, headlines, pretrain):
        monkeypatch.setattr(module, "resolve_device", lambda name: torch.device("meta"), raising=False)
    monkeypatch.setattr("experiments.sequence.model.resolve_device", lambda name: torch.device("meta"))
    for name, module in list(sys.modules.items()):
        if name.startswith("pyro_attention") and hasattr(module, "check_positive"):  # which looks at a value
            monkeypatch.setattr(module, "check_positive", lambda *_, **__: None)
    with torch.device("meta"):
        yield


def sizes(module):
    """Inputs and outputs of a linear map or LSTM."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return module.input_size, module.hidden_size


def attentions(model):
    return [one for one in model.modules() if isinstance(one, MultiheadAttention)]


def count(module):
    return sum(one.numel() for one in module.parameters())


@pytest.mark.usefixtures("without_weights")
def test_translation_is_that_of_deng():
    config = config_of("experiments/nmt/paper/iwslt14.yaml")
    trained = nmt.build(vars_with(config, guide="categorical_enum"), range(14_000))
    model, (network,) = trained.model, [family.network for family in trained.guide.families]
    assert (model.encoder.num_layers, model.encoder.bidirectional, *sizes(model.encoder)) == (2, True, 512, 512)
    assert [sizes(cell) for cell in model.decoder] == [(512 + 1024, 768), (768, 768)]
    assert model.target_embedding.weight.shape == (14_000, 512)
    assert sizes(model.output) == (768, 14_000)
    for lstm in (network.source, network.target):
        assert (lstm.num_layers, lstm.bidirectional, *sizes(lstm)) == (2, True, 512, 512)
    assert network.target_embedding is model.target_embedding
    assert (config.batch_size, config.learning_rate, config.max_epochs, config.beam) == (6, 3e-4, 30, 10)


def vars_with(config, **changes):
    return type(config)(**{**vars(config), **changes})


def questions(width, views=None):
    shape = (2, 5, width) if views is None else (2, views, 5, width)
    features = torch.empty(shape)
    regions = Regions(features, torch.empty(shape[:-1], dtype=torch.bool), (0, 0), torch.empty(0))
    votes = [{"yes": 10}] * 2
    return Questions("train", [["is"]] * 2, ["yes"] * 2, torch.empty(2), regions, ["other"] * 2, votes=votes)


WORDS = vqa.Words([f"word{place}" for place in range(1000)], [f"answer{place}" for place in range(3129)])


@pytest.fixture
def known_spread(monkeypatch):
    monkeypatch.setattr(Regions, "spread", 1.0)  # which is no number where there are no weights


@pytest.mark.usefixtures("without_weights", "known_spread")
def test_mcan_is_that_of_yu():
    config = config_of("experiments/vqa/paper/mcan.yaml")
    model = vqa.build(config, WORDS, questions(2048)).model
    assert {(one.embed_dim, one.num_heads) for one in attentions(model)} == {(512, 8)}
    assert len(attentions(model)) == 6 + 2 * 6  # of the question; of the regions, self and guided
    assert model.output.weight.shape == (3129, 1024)
    embeddings = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    assert [one.embedding_dim for one in embeddings] == [300]
    assert 2048 in {sizes(one)[1] for one in model.modules() if isinstance(one, nn.Linear)}  # inside feed-forward
    assert (config.batch_size, config.learning_rate, config.likelihood) == (64, 1e-4, "scores")


@pytest.mark.usefixtures("without_weights", "known_spread")
def test_bottom_up_is_that_of_deng():
    config = vars_with(config_of("experiments/vqa/paper/bottom_up.yaml"), guide="categorical_sample")
    trained = vqa.build(config, WORDS, questions(2048))
    model, (network,) = trained.model, [family.network for family in trained.guide.families]
    assert (model.lstm.num_layers, *sizes(model.lstm)) == (1, 300, 1024)
    assert sizes(model.hidden) == (2048 + 1024, 1024)
    assert model.dropout.p == 0.5
    assert network.answer.weight.shape == (3129, 256)
    assert sizes(network.out) == (1024, 1)
    assert sizes(network.gate_region) == (256, 2048)
    assert (config.batch_size, config.learning_rate, config.max_epochs) == (512, 5e-4, 50)


@pytest.mark.usefixtures("without_weights", "known_spread")
def test_multi_view_is_that_of_ding():
    config = vars_with(config_of("experiments/vqa/paper/multi_view.yaml"), normalizer="hybrid")
    model = vqa.build(config, WORDS, questions(2048, views=3)).model
    heads = {attention.name: attention.normalizer.mixing_weights.shape for attention in model.attention}
    assert heads == {"view.1": (1,), "view.2": (1,)}
    assert model.norm.normalized_shape == (2048,)


@pytest.mark.usefixtures("without_weights")
def test_captions_are_those_of_att2in():
    config = config_of("experiments/captioning/paper/att2in.yaml")
    model = captioning.build(config, range(9488), 2048).model
    assert model.embedding.embedding_dim == 512
    assert model.output.in_features == 512
    assert sizes(model.region[0]) == (2048, 512)


@pytest.mark.usefixtures("without_weights")
def test_headlines_are_those_of_ding():
    config = vars_with(config_of("experiments/headlines/paper/gigaword.yaml"), normalizer="hybrid")
    model = headlines.build(config, range(30_522)).model
    encoder = model.encoder
    assert len(encoder.layers) == 12
    assert {(one.embed_dim, one.num_heads) for one in attentions(encoder)} == {(768, 12)}
    assert encoder.positions.weight.shape == (128, 768)
    assert model.positions.weight.shape == (64, 768)
    assert count(encoder) == pytest.approx(108e6, rel=0.02)  # "about 108M"; our decoder has layers of its own besides
    assert config.hybrid_share == 0.1


@pytest.mark.usefixtures("without_weights")
def test_pretraining_is_bert_large():
    config = config_of("experiments/pretrain/paper/bert_large.yaml")
    model = pretrain.build(config, range(30_000)).model
    assert {(one.embed_dim, one.num_heads) for one in attentions(model)} == {(1024, 16)}
    assert len(attentions(model)) == 24
    assert count(model) == pytest.approx(334e6, rel=0.005)  # "about 334M"


@pytest.mark.parametrize(
    ("name", "features", "classes"), [("cora", 1433, 7), ("citeseer", 3703, 6), ("pubmed", 500, 3)]
)
def test_graph_attention_is_that_of_velickovic(name, features, classes):
    config = config_of(f"experiments/graph/paper/{name}.yaml")

    class Data:
        num_classes = classes

    Data.name, Data.features = name, torch.empty(1, features)
    model = graph.build_model(vars_with(config, guide="soft"), Data, lambda *_: graph_prior())
    first, last = model.layers
    assert (first.heads, last.heads) == (8, 8 if name == "pubmed" else 1)
    # a projection, two scores of a head, and a bias; the last layer averages its heads
    expected = 64 * features + 2 * 64 + 64 + last.heads * classes * 64 + 2 * last.heads * classes + classes
    assert count(model) - expected in (0, 2 * (8 + last.heads))  # the scores may have a bias each
    assert (config.learning_rate, config.weight_decay) == ((0.01, 0.001) if name == "pubmed" else (0.005, 0.0005))


def graph_prior():
    from pyro_attention import FixedGammaPrior

    return FixedGammaPrior()


@pytest.mark.parametrize(
    ("name", "steps", "examples"),
    [
        ("cola", 5336, 8551), ("stsb", 3598, 5749), ("sst2", 20_935, 67_349), ("mnli", 10_000, 392_702),
        ("qnli", 33_112, 104_743), ("qqp", 14_000, 363_846), ("rte", 800, 2490), ("mrpc", 800, 3668),
        ("squad_1", 3649, 87_599), ("squad_2", 8144, 130_319), ("wnli", 2000, 635), ("race", 12_000, 87_866),
    ],
)  # fmt: skip
def test_epochs_of_fine_tuning_are_the_steps_of_the_papers(name, steps, examples):
    config = config_of(f"experiments/finetune/paper/{name}.yaml")
    assert config.max_epochs == round(steps * config.batch_size / examples)
