import json
from functools import partial

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification

from pyro_attention import AttentionGuide, ContextualGammaPrior, Weibull
from pyro_attention.integrations.huggingface import bayesian, deterministic, from_pretrained
from tests.integrations.tiny_transformers import SUPPORTED

OPTIONS = next(family.options for family in SUPPORTED if family.name == "bert")
IDS = torch.tensor([[7, 8, 9, 10]])


def classifier():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**OPTIONS, num_labels=3)).eval()


@pytest.fixture
def saved(tmp_path):
    model = bayesian(classifier(), prior=partial(ContextualGammaPrior, rate=2.0), sites="*.layer.1.*")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".prior." in name:
                parameter.add_(1)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def assert_same(model, other):
    assert model.state_dict().keys() == other.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@pytest.mark.parametrize("auto", [False, True])
def test_priors_and_sites_come_back(saved, auto):
    model, folder = saved
    if auto:
        other = bayesian(AutoModelForSequenceClassification.from_pretrained(folder))
    else:
        other = from_pretrained(transformers.BertForSequenceClassification, folder)
    assert_same(model, other)
    sites = [name for name in AttentionGuide(other, Weibull()).run(input_ids=IDS).trace if "attention" in name]
    assert sites == ["bert.encoder.layer.1.attention.self"]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_models_of_one_configuration():
    config = transformers.BertConfig(**OPTIONS, num_labels=3)
    models = [bayesian(transformers.BertForSequenceClassification(config)) for _ in range(2)]
    assert not hasattr(config, "pyro_attention")
    for model in models:
        assert all(module.config is model.config for module in model.modules() if hasattr(module, "config"))
    assert deterministic(models[1]).config._attn_implementation == "sdpa"


def test_shards(saved):
    model, folder = saved
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="5KB")
    assert (folder / "model.safetensors.index.json").exists()
    assert_same(model, from_pretrained(AutoModelForSequenceClassification, folder))


def test_an_index_names_files_beside_it(saved, monkeypatch):
    model, folder = saved
    name = "../x.safetensors"
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    weights = dict.fromkeys(model.state_dict(), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", pytest.fail)
    with pytest.raises(ValueError, match=rf"index.json' names the file '{name}', expected names of files beside it"):
        from_pretrained(transformers.BertForSequenceClassification, folder)


def test_another_head_keeps_the_priors(saved):
    model, folder = saved
    base = from_pretrained(AutoModel, folder)
    assert_same(model.bert, base)
    base.save_pretrained(folder)
    with pytest.warns(UserWarning, match=r"no weights for classifier.bias, classifier.weight"):
        other = from_pretrained(AutoModelForTokenClassification, folder)
    assert torch.equal(
        other.bert.encoder.layer[1].attention.self.latent_attention.prior.network.hidden_bias,
        model.bert.encoder.layer[1].attention.self.latent_attention.prior.network.hidden_bias,
    )


def test_a_deterministic_model_saves_no_priors(saved):
    model, folder = saved
    deterministic(model).save_pretrained(folder)
    assert not any("latent" in name for name in load_file(folder / "model.safetensors"))
    with pytest.raises(ValueError, match=r"was not saved by a Bayesian model.* bayesian\(AutoModel.from_pretrained"):
        from_pretrained(AutoModel, folder)


def test_priors_of_a_function(saved):
    folder = saved[1]
    bayesian(classifier(), prior=lambda width: ContextualGammaPrior(width, heads=2)).save_pretrained(folder)
    with pytest.raises(ValueError, match="made by a function, which it cannot hold; pass prior="):
        from_pretrained(AutoModel, folder)
    from_pretrained(AutoModel, folder, prior=lambda width: ContextualGammaPrior(width, heads=2))
    with pytest.raises(ValueError, match=r"has shape \(2, 8, 10\) in .*, expected \(1, 8, 10\)"):
        from_pretrained(AutoModel, folder, prior="gamma_contextual")


def test_lost_priors(saved):
    folder = saved[1]
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "hidden_weight" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"1 of 4 prior parameters are missing in .*hidden_weight"):
        from_pretrained(AutoModelForSequenceClassification, folder)
