import re
from pathlib import Path

import pyro
import pytest
import torch

import pyro_attention
from pyro_attention import AttentionGuide, FixedGammaPrior, LatentAttention, Weibull

README = Path(__file__).parents[1] / "README.md"
CODE = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def test_the_first_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE[0], "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("(")[0] for line in lines] == ["Soft", "Weibull", "LogNormal"]
    # soft attention has no spread, the others do
    spread = [float(line.split("+- ")[1]) for line in lines]
    assert spread[0] == 0
    assert min(spread[1:]) > 0


def test_the_first_example_is_short() -> None:
    assert len([line for line in CODE[0].splitlines() if line.strip()]) <= 24


def test_the_uncertainty_example_runs() -> None:
    (example,) = [code for code in CODE if "fit_temperature" in code]
    attention, out = LatentAttention("attention", FixedGammaPrior()), torch.nn.Linear(4, 3)

    def model(x: torch.Tensor) -> torch.Tensor:
        with pyro.plate("items", len(x)):
            return out(attention(x @ x.mT, x).context[:, 0, 0])

    y, first = torch.randint(3, (40,)), torch.arange(40) < 20
    names = {"guide": AttentionGuide(model, Weibull()), "x": torch.randn(40, 1, 5, 4), "y": y, "correct": y == 0}
    exec(compile(example, "README.md", "exec"), names | {"validation": first, "test": ~first})


def test_the_family_is_that_of_the_contract_tests() -> None:
    (example,) = [code for code in CODE if "OneParameterFamily" in code]
    assert example.strip() in (ROOT / "tests" / "families" / "inverse_gamma.py").read_text()


def test_the_encoder_becomes_bayesian_as_written() -> None:
    (example,) = [code for code in CODE if "TransformerEncoder" in code]
    names = {"pyro": pyro, "dist": pyro.distributions, "torch": torch}
    names |= {"x": torch.randn(64, 5, 8), "y": torch.randint(2, (64,))}
    exec(compile(example, "README.md", "exec"), vars(pyro_attention) | names)


def test_a_pretrained_transformer_becomes_bayesian_as_written(tmp_path, monkeypatch, capsys) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    (example,) = [code for code in CODE if "from_pretrained" in code]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "a", "good", "bad", "film"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(words), **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {
        "torch": torch,
        "folder": str(tmp_path),
        "sentences": ["a good film", "bad"],
        "labels": torch.tensor([1, 0]),
    }
    exec(compile(example, "README.md", "exec"), vars(pyro_attention) | names)
    assert (tmp_path / "fine-tuned" / "model.safetensors").is_file()
    assert capsys.readouterr().out.count("[") == 3  # probabilities of two sentences


@pytest.mark.parametrize("words", ["kl_weight=Linear", "rest=AutoNormal"])
def test_the_guides_can_be_made_as_written(words: str) -> None:
    (example,) = [code for code in CODE if words in code]
    layers = [LatentAttention(name, FixedGammaPrior()) for name in ("encoder.0", "decoder.0")]

    def model(x: torch.Tensor) -> None:
        pyro.sample("dropout_rate", pyro.distributions.Beta(1.0, 1.0))
        for layer in layers:
            layer(x @ x.mT, x)

    names = vars(pyro_attention) | {"model": model, "AutoNormal": pyro.infer.autoguide.AutoNormal}
    for line in example.splitlines():
        if line.startswith("AttentionGuide("):
            guide = eval(line.split("#")[0], dict(names))
            guide(torch.randn(2, 3, 4))
    exec(compile(example, "README.md", "exec"), dict(names))


TEXT, ROOT = README.read_text(), README.parent


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", TEXT))))
def test_every_command_named_exists(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^     (\w[\w./]*(?:\.py|/))", TEXT, re.M))))
def test_every_file_named_exists(name: str) -> None:
    assert (ROOT / "pyro_attention" / name).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.M))))
def test_every_target_named_exists(target: str) -> None:
    assert target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
