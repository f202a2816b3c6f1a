"""Pretrained models and tokenizers of Hugging Face, from a folder or from the hub; what is wrong with one is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from experiments.files import UserError
from experiments.finetune.config import FineTuneOptions
from pyro_attention.integrations.huggingface.convert import shards

__all__ = ["check_fit", "load_network", "load_tokenizer"]

_SHOWN = 3  # names of missing weights in an error


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a pretrained model.

    Raises:
        UserError: There is none, or one without padding.
    """
    with _explained(model, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    if getattr(tokenizer, "pad_token_id", None) is None:  # that of RAG, which is two tokenizers, has no such attribute
        raise UserError(
            f"model {model}: its tokenizer has no padding token, expected one, as sentences of a batch have different "
            f"lengths; choose an encoder such as BERT, or save the tokenizer with a pad_token"
        )
    return tokenizer


def load_network(model: str, head: Any, **options: Any) -> nn.Module:
    """A pretrained model with a new output layer, whose weights the random state decides.

    Args:
        model: Its folder or its name on the hub.
        head: One of the Auto classes of transformers.
        options: Of the configuration of the output layer.

    Raises:
        UserError: There is no such model, its weights are missing, damaged or pickled, or it has no such output layer.
    """
    with _explained(model, "model"):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        _check_attention(config)
        shards(model, config, {})  # transformers would read any file that an index names
        network, info = head.from_pretrained(
            model, use_safetensors=True, trust_remote_code=False, output_loading_info=True, **options
        )
    prefix = f"{network.base_model_prefix}."
    # a pooler belongs to the output layer: models that were pretrained without one have none
    missing = [name for name in sorted(info["missing_keys"]) if name.startswith(prefix) and "pooler" not in name]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + ", ..." * (len(missing) > _SHOWN)
        raise UserError(
            f"model {model}: {len(missing)} weights of the pretrained network are missing ({shown}), expected those of "
            f"{type(network).__name__}; config.json and model.safetensors belong to different models"
        )
    return network


def _check_attention(config: Any) -> None:
    """Raise ValueError where a configuration asks for a kernel of the hub, which is code that transformers fetches."""
    asked = config._attn_implementation
    if asked not in (None, "eager", "sdpa"):
        raise ValueError(f"config.json asks for the attention {asked!r}, expected eager or sdpa; remove the entry")


def check_fit(config: FineTuneOptions, network: Any, tokenizer: Any) -> None:
    """Check that tokenizer, network and length belong together.

    Raises:
        UserError: They do not.
    """
    size = network.get_input_embeddings().num_embeddings
    if len(tokenizer) > size:
        raise UserError(
            f"model {config.model}: its tokenizer has {len(tokenizer)} tokens and its embedding {size}, expected as "
            f"many at least; put the tokenizer files of this model into its folder"
        )
    most = getattr(network.config, "max_position_embeddings", None)
    if most and config.length > most:
        raise UserError(
            f"length is {config.length}, and model {config.model} has {most} positions; pass --length {most}"
        )


@contextmanager
def _explained(model: str, what: str) -> Iterator[None]:
    """Errors of what cannot be loaded, in one line; and no notes on the new output layer, which is meant to be new."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # on a configuration that makes no sense the library raises nearly anything
        raise UserError(
            f"model {model}: its {what} cannot be loaded ({' '.join(str(error).split())}); expected a folder of "
            f"Hugging Face with config.json, model.safetensors and the tokenizer's files, or a name on the hub (which "
            f"needs the network); pickled weights are not read: save them again by save_pretrained"
        ) from error
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
