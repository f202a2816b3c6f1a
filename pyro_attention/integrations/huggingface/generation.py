"""Generated text of a Bayesian decoder: where its tokens looked, and how unsure they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from pyro_attention.analysis.classification import UncertaintyDecomposition, decompose_uncertainty
from pyro_attention.analysis.rauq import rauq
from pyro_attention.guide import AttentionGuide, run_guide
from pyro_attention.integrations.huggingface.adapters import base_model
from pyro_attention.integrations.huggingface.attention import NAME
from pyro_attention.integrations.huggingface.model import BayesianModel
from pyro_attention.posterior.passes import Pass, Run, evaluation_mode, read_draws, seeded
from pyro_attention.viewer.views import View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.cache_utils import Cache

Decoder: TypeAlias = Any
"""Bayesian decoder with ``generate``, also as a ``PeftModel``: no class of transformers has all of its methods."""

Options: TypeAlias = dict[str, Any]
"""Options of ``generate`` by name."""

__all__ = ["Answer", "answer_uncertainty", "draw_answer", "generated_view", "read_answer"]


def generated_view(
    guide: AttentionGuide,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    sites: str | Sequence[str] | None = None,
    num_samples: int = 50,
    seed: int | None = None,
    title: str = "",
    **options: Any,
) -> View:
    """Generate text, and view the attention of every generated token to the given tokens, head by head.

    A row holds the weights with which a token was predicted: those of the position before it. The rest of the sum of
    one lies on tokens that were generated before. The text is generated at the mean weights, which are those of the
    deterministic model; the draws are of the guide, for that text. Write the page with :func:`write_viewer`.

    Args:
        guide: Guide of a Bayesian decoder, such as ``AttentionGuide(bayesian(model), Weibull(10.0))``.
        tokenizer: Tokenizer of the model.
        text: The given text.
        sites: Pattern of sites, or several, as in ``fnmatch``; the last site by default. The page holds every head.
        num_samples: Number of draws.
        seed: Seed of the draws.
        title: Title of the view; the generated text by default.
        options: Options of ``generate``, such as ``max_new_tokens=20``.

    Raises:
        TypeError: The model is no Bayesian model of transformers.
        ValueError: It is no decoder; the text is longer than its context, or empty; no site matches; the cache is
            switched off; nothing was generated.

    Example:
        >>> view = generated_view(guide, tokenizer, "Where is Rome?", max_new_tokens=10)  # doctest: +SKIP
        >>> write_viewer("answer.html", [view], title="Where is Rome?")  # doctest: +SKIP
    """
    model = _decoder(guide)
    given = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    tokens = _generate(model, given, options)
    start, whole = given.size(1), torch.cat([given, tokens[None]], 1)
    names = _sites(model, sites)
    # the last token predicts nothing yet
    run = Run(guide, (), {"input_ids": whole[:, :-1]}, whole=False)

    def read(drawn: Pass) -> Iterator[tuple[str, Tensor]]:
        for name, weights in drawn.weights():
            if name in names:
                yield name, weights[:, 0, :, start - 1 :, :start].cpu()

    weights_by_site = read_draws(
        run, read, num_samples=num_samples, noise="attention", chunk_size=1, seed=seed
    )  # fmt: skip
    heads = [
        (name, f"head {head}", weights_by_site[name][:, head])
        for name in names
        for head in range(weights_by_site[name].size(1))
    ]
    rows, columns = ([_shown(tokenizer, token) for token in ids.tolist()] for ids in (tokens, given[0]))
    title = title or str(tokenizer.decode(tokens, skip_special_tokens=True))
    return View(rows, columns, ("generated", "given"), heads, title=title)


@dataclass(frozen=True)
class Answer:
    """Answer that a decoder generated at the mean weights, and the uncertainty of its tokens.

    Attributes:
        tokens: The generated tokens, ``[T]``.
        log_probs: Log probabilities of the tokens at the mean weights, ``[T]``; the sequence has their sum.
        entropy: Entropy in nats of each prediction at the mean weights, ``[T]``.
        rauq: Uncertainty by attention to the previous token (:func:`rauq`).
        cache: Keys and values of the given text except its last token, for :func:`draw_answer`.
        last: The last given token, ``[1]``.
    """

    tokens: Tensor
    log_probs: Tensor
    entropy: Tensor
    rauq: float
    cache: Cache | None
    last: Tensor


def read_answer(guide: AttentionGuide, input_ids: Tensor, **options: Any) -> Answer:
    """Generate an answer at the mean weights, with the uncertainty that the model itself has, without draws.

    The given text is read once; its keys and values serve :func:`draw_answer`, too.

    Args:
        guide: Guide of a Bayesian decoder.
        input_ids: One given text, ``[1, L]``.
        options: Options of ``generate``, such as ``max_new_tokens=20``.

    Returns:
        The answer, with its uncertainty.

    Raises:
        TypeError: The model is no Bayesian model of transformers.
        ValueError: As for :func:`generated_view`.
    """
    model = _decoder(guide)
    _check_text(model, input_ids, options)
    with torch.no_grad(), evaluation_mode():
        cache = None
        if input_ids.size(1) > 1:
            cache = model(input_ids=input_ids[:, :-1], use_cache=True).past_key_values
        again = {} if cache is None else {"past_key_values": copy.deepcopy(cache)}
        tokens = _generate(model, input_ids, options | again)
        queries = torch.cat([input_ids[0, -1:], tokens])[None]
        output = model(
            input_ids=queries, past_key_values=copy.deepcopy(cache), use_cache=True, output_attentions=True,
            attention_mask=torch.ones_like(torch.cat([input_ids[0], tokens]))[None],
        )  # fmt: skip
    predictions = output.logits[0, :-1].float().log_softmax(-1)
    log_probs = predictions.gather(-1, tokens[:, None])[:, 0]
    layers = [weights[0].float() for weights in output.attentions]
    third = max(1, len(layers) // 3)
    middle = layers[third : 2 * third] or layers
    previous = torch.stack([_to_previous(weights, len(tokens)) for weights in middle])
    entropy = torch.special.entr(predictions.exp()).sum(-1)
    score = rauq(log_probs.cpu(), previous.cpu())
    return Answer(tokens, log_probs, entropy, score, cache, input_ids[0, -1:])


def draw_answer(guide: AttentionGuide, answer: Answer, *, num_samples: int = 10, seed: int | None = None) -> Tensor:
    """Draw the weights of an answer's tokens, and return the probabilities of its predictions, ``[S, T, vocabulary]``.

    The given text is that of the mean weights; drawn are the weights of the tokens that predict the answer. All draws
    are one pass, so they cost S times T tokens, however long the given text is.

    Args:
        guide: Guide of the model that generated the answer; its families may differ.
        answer: Result of :func:`read_answer`.
        num_samples: Number of draws S.
        seed: Seed of the draws.
    """
    _decoder(guide)
    queries = torch.cat([answer.last, answer.tokens[:-1]]).expand(num_samples, -1)
    cache, past = copy.deepcopy(answer.cache), 0
    if cache is not None:
        past = cache.get_seq_length()
        cache.batch_repeat_interleave(num_samples)
    mask = torch.ones(num_samples, past + queries.size(1), dtype=torch.int64, device=queries.device)
    with torch.no_grad(), evaluation_mode(), seeded(seed):
        logits = run_guide(
            guide, input_ids=queries, past_key_values=cache, use_cache=True, attention_mask=mask
        ).output  # fmt: skip
    return torch.as_tensor(logits).float().softmax(-1)


def answer_uncertainty(
    guide: AttentionGuide, input_ids: Tensor, *, num_samples: int = 10, seed: int | None = None, **options: Any
) -> tuple[Answer, UncertaintyDecomposition]:
    """Generate an answer, and split the entropy of each of its predictions over draws of the weights.

    Args:
        guide: Guide of a Bayesian decoder.
        input_ids: One given text, ``[1, L]``.
        num_samples: Number of draws.
        seed: Seed of the draws.
        options: Options of ``generate``, such as ``max_new_tokens=20``.

    Returns:
        The answer, and the parts of the entropies of its tokens in nats, each ``[T]``; the answer has their mean.

    Raises:
        TypeError: The model is no Bayesian model of transformers.
        ValueError: As for :func:`generated_view`.

    Example:
        >>> inputs = tokenizer("Where is Rome?", return_tensors="pt")["input_ids"]  # doctest: +SKIP
        >>> answer, parts = answer_uncertainty(guide, inputs, max_new_tokens=10)  # doctest: +SKIP
        >>> parts.total.mean(), parts.mutual_information.mean(), answer.rauq  # doctest: +SKIP
    """
    answer = read_answer(guide, input_ids, **options)
    return answer, decompose_uncertainty(draw_answer(guide, answer, num_samples=num_samples, seed=seed))


def _to_previous(weights: Tensor, length: int) -> Tensor:
    """Return the weights of the second to the last generated token at the token before, ``[heads, T - 1]``.

    Rows are the last given token and the generated ones. Columns end with these; at the left a cache that slides may
    have dropped some.
    """
    rows = torch.arange(2, length + 1, device=weights.device)
    return weights[:, rows, weights.size(-1) - length + rows - 2]


def _decoder(guide: AttentionGuide) -> Decoder:
    """Return the Bayesian decoder of a guide."""
    model: Decoder = guide.model
    if not isinstance(base_model(model), BayesianModel):
        raise TypeError(
            f"the guide's model is a {type(model).__name__}, expected AttentionGuide(model, ...) of a model of "
            f"bayesian() of pyro_attention.integrations.huggingface"
        )
    if model.config.is_encoder_decoder or not base_model(model).can_generate():
        raise ValueError(
            f"{type(model).__name__} does not continue the text that it is given, expected a decoder such as "
            f"GPT2LMHeadModel or LlamaForCausalLM"
        )
    return model


def _check_text(model: Decoder, given: Tensor, options: Options) -> None:
    """Raise ValueError where a text does not fit into the context, or generation would not keep its past."""
    if given.dim() != 2 or len(given) != 1 or not given.size(1):
        raise ValueError(f"input_ids have shape {tuple(given.shape)}, expected [1, L] with one token or more")
    if options.get("use_cache") is False:
        raise ValueError("use_cache=False would read the whole text anew for every token; leave it out")
    for name in ("num_beams", "num_return_sequences"):
        if _option(options, name) not in (None, 1):
            raise ValueError(f"{name} is {_option(options, name)}, expected 1: one text is viewed at a time")
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    new, longest = _option(options, "max_new_tokens"), _option(options, "max_length")
    if new is None:
        new = 1 if longest is None else max(1, longest - given.size(1))
    if context is not None and given.size(1) + new > context:
        raise ValueError(
            f"the text has {given.size(1)} tokens, and with {new} generated ones it is longer than the context of "
            f"{type(model).__name__}, {context} tokens; shorten it, or pass a smaller max_new_tokens="
        )


def _option(options: Options, name: str) -> Any:  # of the type of the option
    """Return an option of ``generate``, which may lie in a ``generation_config``; None where it is not given."""
    given = options.get(name)
    return getattr(options.get("generation_config"), name, None) if given is None else given


def _generate(model: Decoder, given: Tensor, options: Options) -> Tensor:
    """Return the tokens that a model generates at the mean weights, ``[T]``; the most probable ones by default."""
    _check_text(model, given, options)
    settings = {"do_sample": False} | options | {"return_dict_in_generate": False}
    with torch.no_grad(), evaluation_mode():
        whole = model.generate(input_ids=given, attention_mask=torch.ones_like(given), **settings)
    tokens: Tensor = whole[0, given.size(1) :]
    if not len(tokens):
        raise ValueError("nothing was generated; pass max_new_tokens= of 1 or more")
    return tokens


def _sites(model: nn.Module, sites: str | Sequence[str] | None) -> list[str]:
    """Return the attention sites that match, in the order of the layers; the last site by default."""
    names: list[str] = getattr(base_model(model).config, NAME)["sites"]
    if sites is None:
        return names[-1:]
    patterns = [sites] if isinstance(sites, str) else list(sites)
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise ValueError(f"sites is {sites!r}, expected patterns of attention sites, such as {names[-1]!r}")
    return chosen


def _shown(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return a token as readable text; where it is no whole letter, as the tokenizer writes it."""
    text = str(tokenizer.decode([token]))
    if text and not text.strip():
        return text.replace("\n", "↵").replace(" ", "␣").replace("\t", "⇥")
    return text.strip() if text and "�" not in text else str(tokenizer.convert_ids_to_tokens(token))
