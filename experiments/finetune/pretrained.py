"""Encoders of ``experiments.pretrain``, called as networks of Hugging Face: tokenizer, states and output layers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import Lowercase, Replace, Sequence, Strip
from tokenizers.processors import ByteLevel, TemplateProcessing
from tokenizers.processors import Sequence as Processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from experiments.callbacks import AGAIN, read_weights, weights_file
from experiments.data.text.batches import BEGIN, END, PAD, SPECIAL, UNKNOWN, Vocabulary
from experiments.files import reading
from experiments.folder import saved_config
from experiments.sequence.config import TextEncoderOptions
from experiments.sequence.model import text_encoder
from experiments.training import PriorFactory
from models.text import TextEncoder
from pyro_attention.ops.noise import Dropout

_MODEL = "objective.model."  # what the names of the network's weights begin with in the file of a run
_CLASSIFIER_DROPOUT = 0.1  # ahead of the output layer, as in Ding et al. (2020), table 5


def is_pretraining(model: str) -> bool:
    """Return whether a path is the folder of a run of ``experiments.pretrain``."""
    return all((Path(model) / name).is_file() for name in ("config.yaml", "vocabulary.json"))


def encoder_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the tokenizer of Hugging Face that has the ids of a vocabulary.

    Texts become small letters, as those of the pretraining. A pair is ``<s> A </s> B </s>``, as for the order of
    sentences there.

    Example:
        >>> from experiments.data.text.batches import train_tokenizer
        >>> vocabulary = train_tokenizer(["a dog runs"] * 2, size=270)
        >>> tokenizer = encoder_tokenizer(vocabulary)
        >>> tokenizer("A dog")["input_ids"] == [1, *vocabulary.encode("a dog"), 2]
        True
    """
    tokens = Tokenizer.from_str(vocabulary.text)
    tokens.normalizer = Sequence([Replace(Regex(r"\s+"), " "), Strip(), Lowercase()])
    begin, end = SPECIAL[BEGIN], SPECIAL[END]
    template = TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B:1 {end}:1", special_tokens=[(begin, BEGIN), (end, END)]
    )
    tokens.post_processor = Processors([ByteLevel(trim_offsets=True), template])  # no blank belongs to a token
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token=SPECIAL[PAD], unk_token=SPECIAL[UNKNOWN], cls_token=begin, sep_token=end,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"], split_special_tokens=True,
    )  # fmt: skip


def load_encoder_tokenizer(folder: str) -> Any:
    """Load the tokenizer of the run in a folder; DamagedFileError where its vocabulary cannot be read."""
    return encoder_tokenizer(Vocabulary.load(Path(folder) / "vocabulary.json"))


class EncoderStates(nn.Module):
    """Encoder that takes the arguments of a network of Hugging Face, and returns its ``last_hidden_state``."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """Return the states ``[..., B, N, width]``; the encoder has no embedding of the segments."""
        return SimpleNamespace(last_hidden_state=self.encoder(input_ids, attention_mask.bool()))


class EncoderNetwork(nn.Module):
    """Pretrained encoder with a new output layer, which is called as a network of Hugging Face.

    The output layer of spans reads every token. That of classes reads the mean of the tokens; after a pretraining with
    the order of sentences it reads the first token through the layer that was trained for the order, as in BERT.

    Args:
        encoder: The encoder.
        first: Layer over the first token that was pretrained with the order of sentences; None without one.
        outputs: Number of outputs.
        spans: Whether the outputs are those of the first and the last token of an answer.
    """

    def __init__(self, encoder: TextEncoder, first: nn.Module | None, *, outputs: int, spans: bool) -> None:
        super().__init__()
        width = encoder.tokens.embedding_dim
        self.output = nn.Linear(width, outputs)
        self.base_model, self.first = EncoderStates(encoder), first
        self.dropout, self.spans = Dropout(_CLASSIFIER_DROPOUT), spans
        attention: Any = encoder.layers[0].attention
        self.config = SimpleNamespace(
            hidden_size=width, num_labels=outputs, num_hidden_layers=len(encoder.layers),
            num_attention_heads=attention.num_heads, max_position_embeddings=encoder.positions.num_embeddings,
        )  # fmt: skip

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """Return ``start_logits`` and ``end_logits`` ``[..., B, N]``, or ``logits`` ``[..., B, outputs]``."""
        states = self.base_model(input_ids, attention_mask).last_hidden_state
        if self.spans:
            start, end = self.output(self.dropout(states)).unbind(-1)
            return SimpleNamespace(start_logits=start, end_logits=end)
        if self.first is None:
            mask = attention_mask.unsqueeze(-1)
            text = (states * mask).sum(-2) / mask.sum(-2)
        else:
            text = self.first(states[..., 0, :])
        return SimpleNamespace(logits=self.output(self.dropout(text)))


def load_encoder(folder: str, prior: PriorFactory, *, outputs: int, spans: bool) -> EncoderNetwork:
    """Load the encoder of a finished run with a new output layer, whose weights are drawn from the random state.

    Args:
        folder: Folder of the run.
        prior: Makes the prior of an attention layer from (key width, heads). Where the pretraining had the same priors,
            their weights are loaded.
        outputs: Number of outputs.
        spans: Whether these are first and last token of an answer; else they belong to the whole text.

    Raises:
        UserError: The run is not finished, or its files are damaged.
    """
    config = saved_config(Path(folder), TextEncoderOptions, script="experiments.pretrain")
    vocabulary = Vocabulary.load(Path(folder) / "vocabulary.json")
    with torch.random.fork_rng():  # the weights of the output layer do not depend on the prior
        encoder = text_encoder(config, vocabulary, prior)
    path = weights_file(Path(folder))
    weights = {name.removeprefix(_MODEL): value for name, value in read_weights(path).items()}
    with reading(path, "weights of this encoder", AGAIN):
        loaded = {
            name: weights[f"encoder.{name}"]
            for name, value in encoder.state_dict().items()
            # other priors have other weights, or more of them
            if ".prior." not in name or weights.get(f"encoder.{name}", torch.empty(0)).shape == value.shape
        }
        encoder.load_state_dict(loaded, strict=False)
        first = None
        if "order.0.weight" in weights:
            linear = nn.Linear(config.width, config.width)
            linear.load_state_dict({name: weights[f"order.0.{name}"] for name in ("weight", "bias")})
            first = nn.Sequential(linear, nn.Tanh())
    return EncoderNetwork(encoder, first, outputs=outputs, spans=spans)
