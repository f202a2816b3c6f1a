"""Fine-tuning of encoders of experiments.pretrain: their tokenizer, their states, every task end to end, bad input."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from experiments.data.text.batches import train_tokenizer
from experiments.files import UserError
from experiments.finetune.choices import RaceTask
from experiments.finetune.config import GlueConfig, QaConfig, RaceConfig
from experiments.finetune.glue import GlueTask
from experiments.finetune.model import load_network, load_tokenizer
from experiments.finetune.pretrained import EncoderNetwork, encoder_tokenizer, load_encoder
from experiments.finetune.questions import QaTask
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.task import PretrainTask
from experiments.run import load_trained
from models.text import TextEncoder
from pyro_attention import AttentionGuide, FixedGammaPrior, Soft, Weibull
from tests.experiments.finetune.tiny_race import write_race

pytestmark = pytest.mark.usefixtures("tiny_corpus")
TINY = {"length": 20, "batch_size": 8, "max_epochs": 1, "num_samples": 2, "progress": False}
PRETRAININGS = {
    "hybrid": {"normalizer": "hybrid", "guide": "soft", "sentence_order": True, "length": 32},
    "weibull": {"normalizer": "softmax", "guide": "weibull", "length": 32},
}


@pytest.fixture(scope="module")
def pretrained(tiny_corpus, tmp_path_factory):
    """Configurations of finished pretrainings by name."""
    root, sizes = tmp_path_factory.mktemp("pretrained"), {"vocabulary": 270, "width": 8, "heads": 2, "layers": 2}
    configs = {
        name: PretrainConfig(
            **sizes, **options, batch_size=8, max_epochs=1, num_samples=2, progress=False, out=root / name
        )
        for name, options in PRETRAININGS.items()
    }
    for config in configs.values():
        PretrainTask().run(config)
    return configs


@pytest.fixture(scope="module")
def data(place):
    """The tiny data of all tasks."""
    return write_race(place)


def glue(data, model, out=None, **options):
    return GlueConfig(**TINY | {"task": "rte", "model": str(model), "data_root": data, "out": out} | options)


def soft(model, *arguments):
    """What a function with attention sites returns under soft attention."""
    return AttentionGuide(model, Soft()).run(*arguments).output


# the tokenizer and the encoder


def test_the_tokenizer_has_the_ids_of_the_pretraining():
    vocabulary = train_tokenizer(["a dog runs fast", "the dog sleeps"] * 3, size=300)
    tokenizer, text, other = encoder_tokenizer(vocabulary), "A  dog\truns </s>, fäst!", " The dog"
    ids, second = vocabulary.encode(text.lower()), vocabulary.encode(other.lower())
    encoded = tokenizer(text, other, return_offsets_mapping=True)
    assert encoded["input_ids"] == [1, *ids, 2, *second, 2]
    assert encoded["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (len(second) + 1)
    # tokens are parts of the text as it was written, without blanks around them
    spans = encoded["offset_mapping"][1 : len(ids) + 1]
    assert [text[begin:end] for begin, end in spans][:2] == ["A", "dog"]
    assert all(text[begin:end].strip() == text[begin:end] for begin, end in spans)
    assert tokenizer.pad_token_id == 0


@pytest.mark.parametrize("name", PRETRAININGS)
def test_the_encoder_is_the_pretrained_one(pretrained, name):
    """States and classes by hand; the prior is that of the fine-tuning."""
    config = pretrained[name]
    start = load_trained(PretrainTask(), config)
    start.model.eval()
    network = load_encoder(str(config.out), lambda *_: FixedGammaPrior(), outputs=3, spans=False).eval()
    inputs = {"input_ids": torch.tensor([[1, 40, 41, 2], [1, 50, 2, 0]])}
    inputs["attention_mask"] = (inputs["input_ids"] > 0).long()
    with torch.no_grad():
        states = soft(start.model.encoder, inputs["input_ids"], inputs["attention_mask"].bool())
        of_network = soft(lambda: network.base_model(**inputs, token_type_ids=None).last_hidden_state)
        torch.testing.assert_close(of_network, states)
        if name == "hybrid":  # pretrained with the order of sentences
            text = start.model.order[1](start.model.order[0](states[:, 0]))
        else:
            text = torch.stack([states[0].mean(0), states[1, :3].mean(0)])
        logits = soft(lambda: network(**inputs, return_dict=True).logits)
        torch.testing.assert_close(logits, network.output(text))
    assert network.config.max_position_embeddings == 32
    assert (network.config.num_hidden_layers, network.config.num_attention_heads) == (2, 2)


def test_the_prior_of_the_pretraining_goes_on_where_it_is_the_same(pretrained):
    config = pretrained["weibull"]
    start, options = load_trained(PretrainTask(), config), {"guide": "weibull", "prior": "contextual"}
    network = load_network(glue(None, config.out, **options), AutoModelForSequenceClassification, num_labels=2)
    own = {name: value for name, value in network.base_model.encoder.state_dict().items() if ".prior." in name}
    assert own
    for name, value in start.model.encoder.state_dict().items():
        if name in own:
            torch.testing.assert_close(own[name], value)


# end to end


@pytest.mark.parametrize(
    ("name", "task"),
    [("hybrid", "rte"), ("hybrid", "squad"), ("hybrid", "race"), ("weibull", "stsb"), ("weibull", "race")],
)
def test_every_task_goes_on_from_ones_own_pretraining(pretrained, data, tmp_path, name, task):
    guide = {"guide": "weibull", "concentration": 1.0} if name == "weibull" else {"guide": "soft"}
    options = TINY | guide | {"model": str(pretrained[name].out), "data_root": data, "out": tmp_path / "run"}
    made = {
        "rte": lambda: (GlueTask(), GlueConfig(task="rte", pooling="pair", **options)),
        "stsb": lambda: (GlueTask(), GlueConfig(task="stsb", **options)),
        "squad": lambda: (QaTask(), QaConfig(stride=8, **options)),
        "race": lambda: (RaceTask(), RaceConfig(**options)),
    }
    runner, config = made[task]()
    metrics = runner.run(config)
    assert all(math.isfinite(value) for value in metrics.values())
    kind = "attention" if name == "weibull" else "mc_dropout"
    assert any(metric.startswith(f"test_{kind}_") for metric in metrics)
    trained = load_trained(runner, config)
    encoder = next(module for module in trained.model.modules() if isinstance(module, TextEncoder))
    start = load_trained(PretrainTask(), pretrained[name])
    difference = (encoder.tokens.weight - start.model.encoder.tokens.weight).abs().max()
    assert 0 < difference < 0.1  # fine-tuned, and not made anew
    families = {type(family) for family in trained.guide.families}
    assert (Weibull in families) == (name == "weibull")


def test_the_class_of_a_sentence_is_learned(pretrained, data, tmp_path):
    """The first word tells it; chance is a half."""
    config = glue(
        data, pretrained["hybrid"].out, tmp_path / "run", task="sst2", learning_rate=2e-2, max_epochs=10, length=32
    )
    GlueTask().run(config)
    trained = load_trained(GlueTask(), config)
    train = GlueTask().load(config)["train"]
    logits = torch.cat([trained.module.outputs(train[0, [index]].inputs)[0] for index in range(len(train))])
    assert (logits.argmax(-1) == train.labels).double().mean() > 0.7


def test_a_table_has_a_pretraining_for_each_normalizer_and_seed(tmp_path):
    config = glue(None, tmp_path, normalizer="hybrid", seed=1)
    with pytest.raises(UserError, match=r"normalizer is hybrid, .*runs are: none; expected the folder of a table"):
        _ = config.pretrained
    (tmp_path / "runs" / "hybrid-soft-0").mkdir(parents=True)
    (tmp_path / "runs" / "hybrid-weibull-1").mkdir()
    assert config.pretrained == str(tmp_path / "runs" / "hybrid-soft-0")  # the only one
    (tmp_path / "runs" / "hybrid-soft-1").mkdir()
    assert config.pretrained == str(tmp_path / "runs" / "hybrid-soft-1")
    with pytest.raises(UserError, match=r"hybrid-soft-0, hybrid-soft-1; .* with seed 2"):
        _ = replace(config, seed=2).pretrained
    assert replace(config, normalizer=None).pretrained == str(tmp_path)


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 40}, "length is 40, and model .* has 32 positions; pass --length 32"),
        ({"guide": "weibull", "objective": "evidence"}, "objective is evidence, but EncoderNetwork does not have the"),
    ],
)
def test_bad_options(pretrained, data, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        GlueTask().run(glue(data, pretrained["hybrid"].out, tmp_path / "run", **options))


def test_a_pretraining_that_is_not_finished_is_refused(pretrained, data, tmp_path):
    folder = tmp_path / "unfinished"
    folder.mkdir()
    for name in ("config.yaml", "vocabulary.json"):
        (folder / name).write_bytes((pretrained["hybrid"].out / name).read_bytes())
    with pytest.raises(UserError, match=r"best\.safetensors is missing"):
        GlueTask().run(glue(data, folder, tmp_path / "run"))
    (folder / "vocabulary.json").write_text("{}")
    with pytest.raises(UserError, match=r"vocabulary\.json cannot be read"):
        load_tokenizer(str(folder))


def test_a_span_has_a_first_and_a_last_token(pretrained):
    network = load_encoder(str(pretrained["hybrid"].out), lambda *_: FixedGammaPrior(), outputs=2, spans=True).eval()
    assert isinstance(network, EncoderNetwork)
    inputs = {"input_ids": torch.tensor([[1, 40, 2]]), "attention_mask": torch.ones(1, 3).long()}
    expected = network.output(soft(lambda: network.base_model(**inputs).last_hidden_state))
    for name, logits in zip(("start_logits", "end_logits"), expected.unbind(-1), strict=True):
        torch.testing.assert_close(soft(lambda name=name: getattr(network(**inputs), name)), logits)
