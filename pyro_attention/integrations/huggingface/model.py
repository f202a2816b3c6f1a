"""A converted model as a Pyro model: its plate, the distribution of its labels, and the negative ELBO as its loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import pyro
import torch
from pyro import poutine
from pyro.distributions import Bernoulli, Categorical, Normal
from torch import Tensor, nn

from pyro_attention._compat import validates_distributions
from pyro_attention.attention import pyro_runs_the_model
from pyro_attention.guide import AttentionGuide, check_guide
from pyro_attention.integrations.huggingface.adapters import base_model, check_priors_are_saved, has_adapters
from pyro_attention.integrations.huggingface.attention import BATCH, DECODER_MASK, GENERATES, NAME, batch_plate
from pyro_attention.objectives.elbo import AttentionELBO

__all__ = ["BayesianModel", "ELBOModel", "Likelihood", "bayesian_class", "likelihood_of", "longest_text"]

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
else:
    PreTrainedModel = object  # of whose subclasses bayesian_class makes another one

Output: TypeAlias = Any
"""Output of a model of transformers; its attributes depend on the head."""

Inputs: TypeAlias = Mapping[str, Any]
"""Inputs of a model of transformers by name: tensors, caches and flags."""

Likelihood: TypeAlias = Callable[[Output, Mapping[str, Tensor]], None]
"""Function of a model's output and the labels that declares the observed sites."""

_LABELS = ("labels", "start_positions", "end_positions")
_IGNORED = -100  # transformers' label of a position that does not count


class BayesianModel(PreTrainedModel):
    """Base class that :func:`bayesian` adds to the class of a model.

    Attributes:
        deterministic_class: Class of the model before.
        pyro_likelihood: Likelihood that was passed to :func:`bayesian`, or None.
        pyro_before: Attention implementations of the model before.
        pyro_saved_priors: Whether the priors came with the checkpoint.
    """

    deterministic_class: type[PreTrainedModel]
    pyro_likelihood: Likelihood | None
    pyro_before: dict[str, object]
    pyro_saved_priors: bool

    def pyro_forward(self, *args: object, **kwargs: Any) -> Output:
        """Run the network in a plate over the batch, observe the labels if there are any, and return the logits.

        Args:
            args: Inputs of the model.
            kwargs: Inputs of the model by name, labels included. With ``return_dict=True``, and where ``generate``
                calls, the whole output is returned; of a classifier with an adapter of PEFT always the logits.
        """
        check_priors_are_saved(self)
        self._check_attention()
        labels = {name: kwargs.pop(name, None) for name in _LABELS}  # first: a head without labels knows no such name
        inputs = _named(self.deterministic_class.forward, self, args, kwargs)
        returns_whole = self._returns_whole(inputs.pop("return_dict", None))
        if returns_whole and self.can_generate() and inputs.get("use_cache") is False:
            raise ValueError(
                "use_cache=False would draw the weights of all earlier tokens anew for every token that is generated, "
                "so that they belong to no draw; leave it out"
            )
        labels |= {name: inputs.pop(name) for name in _LABELS if name in inputs}
        labels = {name: target for name, target in labels.items() if target is not None}
        likelihood = likelihood_of(self) if labels else None
        self._add_decoder_inputs(inputs, labels)
        plate = batch_plate("batch", _batch_size(self, inputs))
        output = self._run_network(inputs, plate)
        if likelihood is not None:
            device = _logits_of(output).device  # that of the last layer, where a model lies on several GPUs
            moved = {name: target.to(device) for name, target in labels.items() if isinstance(target, Tensor)}
            with plate:
                likelihood(output, {**labels, **moved})
        return output if returns_whole else _logits_of(output)

    def _check_attention(self) -> None:
        """Raise ValueError where the attention implementation of the model was changed after :func:`bayesian`."""
        if self.config._attn_implementation != NAME:
            raise ValueError(
                f"the attention of this {type(self).__name__} was set to {self.config._attn_implementation!r} after "
                f"bayesian(), and draws nothing; call model.set_attn_implementation('{NAME}'), which returns weights "
                f"for output_attentions=True, too"
            )

    def _returns_whole(self, return_dict: bool | None) -> bool:
        """Return whether a call wants the whole output, and not the logits alone."""
        # generate does not always ask for what it needs
        if GENERATES.get() and self.can_generate():
            return True
        # PEFT passes return_dict on to every classifier, whoever calls
        return bool(return_dict) and (self.can_generate() or not has_adapters(self))

    def _run_network(self, inputs: Inputs, plate: AbstractContextManager[object]) -> Output:
        """Run the network, whose attention finds the plate of the batch and the decoder's mask in the context."""
        batch_token = BATCH.set(plate if isinstance(plate, pyro.plate) else None)
        decoder_token = DECODER_MASK.set(_decoder_mask(inputs))
        try:
            return self.deterministic_class.forward(self, **inputs, return_dict=True)
        except (IndexError, RuntimeError) as error:
            input_error = _input_error(self, inputs)
            if input_error is None:
                raise
            raise input_error from error
        finally:
            BATCH.reset(batch_token)
            DECODER_MASK.reset(decoder_token)

    def _add_decoder_inputs(self, inputs: dict[str, Any], labels: dict[str, Tensor]) -> None:
        """Let the decoder read the labels, which transformers does itself only where it makes a loss of them.

        What follows the last label that counts is padding, of which the decoder's mask tells: no label depends on it,
        so its weights have no part in the KL.
        """
        if not type(self).__name__.endswith("ForConditionalGeneration") or "labels" not in labels:
            return
        given = [inputs.get(name) for name in ("decoder_input_ids", "decoder_inputs_embeds")]
        read = next((tensor for tensor in given if tensor is not None), None)
        target, mask = labels["labels"], "decoder_attention_mask"
        fits = target.dim() == 2 and (read is None or read.shape[:2] == target.shape)
        if fits and inputs.get(mask) is None and mask in inspect.signature(self.deterministic_class.forward).parameters:
            inputs[mask] = (target != _IGNORED).long().flip(1).cummax(1).values.flip(1)
        if read is not None:
            return
        prepare = getattr(self, "prepare_decoder_input_ids_from_labels", None)
        if prepare is None:
            inputs["labels"] = target
        else:
            inputs["decoder_input_ids"] = prepare(target)


_BAYESIAN_CLASSES: dict[type, type[BayesianModel]] = {}  # by the class of the model: one subclass for all its models


def bayesian_class(original: type) -> type[BayesianModel]:
    """Return the subclass of a model class that is a Pyro model, too, under the name of that class."""
    if original not in _BAYESIAN_CLASSES:
        _BAYESIAN_CLASSES[original] = _subclass(original)
    return _BAYESIAN_CLASSES[original]


def _subclass(original: type) -> type[BayesianModel]:
    """Make the subclass, whose ``forward`` is that of the model where Pyro does not run it."""
    network_class: type[PreTrainedModel] = original
    forward_before, generate_before = network_class.forward, getattr(network_class, "generate", None)

    @wraps(forward_before)  # Trainer reads the signature
    def forward(self: BayesianModel, *args: object, **kwargs: object) -> Output:
        if pyro_runs_the_model():
            return self.pyro_forward(*args, **kwargs)
        return forward_before(self, *args, **kwargs)

    def generate(self: BayesianModel, *args: object, **kwargs: object) -> Output:
        assert generate_before is not None
        token = GENERATES.set(True)
        try:
            return generate_before(self, *args, **kwargs)
        finally:
            GENERATES.reset(token)

    def reduce(self: BayesianModel, protocol: object) -> tuple[object, ...]:  # noqa: ARG001
        return _rebuild, (original,), self.__dict__

    members = {
        "forward": forward, "deterministic_class": original, "__reduce_ex__": reduce,
        "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
    }  # fmt: skip
    if generate_before is not None:
        members["generate"] = wraps(generate_before)(generate)
    return type(original.__name__, (BayesianModel, original), members)


def _rebuild(original: type[PreTrainedModel]) -> BayesianModel:
    """Make an empty model, to be unpickled."""
    made = bayesian_class(original)
    return made.__new__(made)


def _named(
    forward: Callable[..., object], model: BayesianModel, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, Any]:
    """Return all arguments by name."""
    signature = inspect.signature(forward)
    named = dict(signature.bind_partial(model, *args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    del named["self"]
    return named


def _batch_size(model: BayesianModel, inputs: Inputs) -> int:
    """Return the size of the first dimension of the model's main input, else of its first tensor."""
    # positions, which may stand before embeddings, may be the same for all of the batch
    known = [inputs.get(model.main_input_name), inputs.get("inputs_embeds"), *inputs.values()]
    sizes = [len(value) for value in known if isinstance(value, Tensor) and value.dim()]
    if not sizes:
        raise ValueError(f"{type(model).__name__} was given no tensor, expected {model.main_input_name}")
    return sizes[0]


def _decoder_mask(inputs: Inputs) -> Tensor | None:
    """Return which positions of a decoder are no padding, ``[B, T]``; None where its mask is none of these."""
    # a decoder alone, whose encoder ran before, calls its own mask attention_mask
    alone = inputs.get("encoder_hidden_states") is not None
    mask = inputs.get("attention_mask" if alone else "decoder_attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


def _input_error(model: BayesianModel, inputs: Inputs) -> ValueError | None:
    """Return an error that names the token, or the text, that a table of the model has no row for."""
    tokens, config = inputs.get("input_ids"), model.config.get_text_config()
    if tokens is None or not tokens.numel():
        return None
    if tokens.max() >= config.vocab_size or tokens.min() < 0:
        return ValueError(
            f"input_ids lie in {tokens.min().item()} .. {tokens.max().item()}, expected tokens 0 .. "
            f"{config.vocab_size - 1}; take the tokenizer of the model"
        )
    context = longest_text(model)
    if context is None or tokens.size(-1) <= context:
        return None
    return ValueError(
        f"the texts have {tokens.size(-1)} tokens, more than the context of {type(model).__name__}, {context} tokens; "
        f"shorten them by tokenizer(texts, truncation=True, max_length={context})"
    )


def longest_text(model: PreTrainedModel) -> int | None:
    """Return the longest text in tokens, where a model has a table of positions or says so; else None.

    RoBERTa's positions begin behind the padding.
    """
    for path, module in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length


def likelihood_of(model: nn.Module) -> Likelihood:
    """Return the likelihood of a model's head: the one that was passed to :func:`bayesian`, or that of its class.

    Args:
        model: A model of :func:`bayesian`, also with an adapter of PEFT.

    Raises:
        ValueError: The likelihood of the head is not known.
    """
    base = base_model(model)
    given: Likelihood | None = getattr(base, "pyro_likelihood")  # noqa: B009
    if given is not None:
        return given
    name, config = type(base).__name__, base.config
    if name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        return lambda output, labels: _classification(output, labels, config)
    if name.endswith("ForConditionalGeneration"):
        return _tokens if config.is_encoder_decoder else _next_tokens
    for suffix, likelihood in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return likelihood
    raise ValueError(
        f"the likelihood of {name} is not known, its labels have no distribution; pass bayesian(..., likelihood=f), "
        f"where f(output, labels) declares the observed sites by pyro.sample(..., obs=labels['labels']) for a batch in "
        f"a plate at dim -1"
    )


def _logits_of(output: Output) -> Tensor:
    """Return the logits of an output, those of start and end stacked ``[B, 2, T]``, or its states without a head."""
    if getattr(output, "start_logits", None) is not None:
        return torch.stack([output.start_logits, output.end_logits], 1)
    logits = getattr(output, "logits", None)
    tensor: Tensor = output[0] if logits is None else logits
    return tensor


def _observations(labels: Mapping[str, Tensor], *, shifted: bool = False) -> Tensor:
    """Return the number of labels that count, as Trainer counts them, or of examples where labels are positions."""
    if "labels" not in labels:
        return torch.tensor(len(next(iter(labels.values()))))
    target = labels["labels"]
    if target.is_floating_point():  # several of an example count each
        return torch.tensor(target.numel())
    return ((target[:, 1:] if shifted else target) != _IGNORED).sum()


def _classification(output: Output, labels: Mapping[str, Tensor], config: PreTrainedConfig) -> None:
    """Observe a class, several yes-or-no labels, or numbers with a standard deviation of 1."""
    logits, target = output.logits.float(), labels["labels"]
    kind: str | None = config.problem_type
    if kind is None:
        single = "multi_label" if target.is_floating_point() else "single_label"
        kind = "regression" if config.num_labels == 1 else single
    if kind.startswith("regression"):
        pyro.sample("labels", Normal(logits, 1.0).to_event(1), obs=_fit(target.float(), logits.shape))
    elif kind.startswith("multi_label"):
        pyro.sample("labels", Bernoulli(logits=logits).to_event(1), obs=_fit(target.float(), logits.shape))
    else:
        _choice(output, labels)


def _choice(output: Output, labels: Mapping[str, Tensor]) -> None:
    """Observe one of some classes; examples labeled -100 do not count."""
    logits = output.logits.float()
    target, counts = _counted_classes(labels["labels"], logits)
    pyro.sample("labels", Categorical(logits=logits).mask(counts), obs=target)


def _tokens(output: Output, labels: Mapping[str, Tensor]) -> None:
    """Observe a class at every position; positions labeled -100 do not count."""
    _positions(output.logits, labels["labels"])


def _next_tokens(output: Output, labels: Mapping[str, Tensor]) -> None:
    """Observe the next token of every position; those labeled -100 do not count."""
    _positions(output.logits[:, :-1], labels["labels"][:, 1:])


def _positions(logits: Tensor, target: Tensor) -> None:
    """Observe a class at every position of the logits ``[B, T, classes]``."""
    target, counts = _counted_classes(target, logits)
    likelihood = Categorical(logits=logits.float()).mask(counts).to_event(1)
    pyro.sample("labels", likelihood, obs=target)


def _counted_classes(target: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return classes with 0 in the place of those that do not count, and which ones count."""
    target = _fit(target, logits.shape[:-1])
    counts = target != _IGNORED
    target = target.masked_fill(~counts, 0)
    _check_classes(target, logits.size(-1))
    return target, counts


def _span(output: Output, labels: Mapping[str, Tensor]) -> None:
    """Observe the first and the last position of an answer; those outside the window do not count."""
    for name, logits in (("start_positions", output.start_logits), ("end_positions", output.end_logits)):
        if name not in labels:
            raise ValueError(f"the labels are {', '.join(labels)}, expected start_positions and end_positions")
        target = _fit(labels[name], logits.shape[:1])
        inside = (target >= 0) & (target < logits.size(-1))
        with poutine.mask(mask=inside):
            pyro.sample(name, Categorical(logits=logits.float()), obs=target.masked_fill(~inside, 0))


_BY_SUFFIX: dict[str, Likelihood] = {
    "MultipleChoice": _choice,
    "NextSentencePrediction": _choice,
    "TokenClassification": _tokens,
    "MaskedLM": _tokens,
    "CausalLM": _next_tokens,
    "LMHeadModel": _next_tokens,
    "QuestionAnswering": _span,
}


def _fit(target: Tensor, shape: torch.Size) -> Tensor:
    """Return labels in the shape of their distribution; raise ValueError where they are more or fewer."""
    if target.numel() != shape.numel() or len(target) != shape[0]:
        raise ValueError(f"labels have shape {tuple(target.shape)}, expected {tuple(shape)}")
    return target.reshape(shape)


def _check_classes(target: Tensor, classes: int) -> None:
    """Raise unless labels are classes."""
    if target.is_floating_point():
        raise TypeError(
            f"labels are {target.dtype}, expected integers 0 .. {classes - 1}; set config.problem_type to 'regression' "
            f"or 'multi_label_classification' for numbers"
        )
    validates = validates_distributions()
    if validates and target.numel() and (target.min() < 0 or target.max() >= classes):
        raise ValueError(
            f"labels lie in {target.min().item()} .. {target.max().item()}, expected classes 0 .. {classes - 1}; load "
            f"the model with num_labels= as many as there are classes"
        )


class ELBOModel(nn.Module):
    r"""Module whose loss is the negative ELBO per observation of a Bayesian model, the KL included.

    .. math:: -\frac{1}{N} \sum_n \bigl( \mathrm{E}_q[\log p(y_n \mid W_n)] - w\,\mathrm{KL}_n \bigr)

    Every example has its own weights, so the KL is a sum over examples, as the likelihood is. By default w is 0.01, and
    KL_n the mean over the attention weights of the example, of which there may be a million. ``AttentionELBO()`` takes
    their sum, as the bound on the evidence does. Trainer takes the module as its model: it is called with a batch and
    returns ``loss`` and ``logits``. Where Trainer accumulates gradients it passes N, the labels of all micro batches,
    in ``num_items_in_batch``, so that k of them give the gradient of one batch of k times the size. Without it N is the
    number of labels of the batch: where a loop, or Lightning, divides by k itself, micro batches with equally many
    labels give that gradient, too. A state dict holds shared parameters once.

    Give Trainer ``remove_unused_columns=False``: it cannot see which inputs the model inside takes.

    Labels that do not count (-100) are no observations; a batch without any other has the KL alone, undivided. An
    answer, with its start and its end, is one.

    Args:
        model: A model of :func:`bayesian`, also with an adapter of PEFT.
        guide: Its guide.
        elbo: Objective; ``AttentionELBO(kl_weight=0.01, kl_mean=True)`` by default. Advance its ``step`` where the KL
            weight has a schedule.

    Raises:
        TypeError: The guide is no AttentionGuide; at a call: there are no labels.
        ValueError: The likelihood of the head is not known.

    Example:
        >>> trainer = Trainer(ELBOModel(model, guide), arguments, train_dataset=examples)  # doctest: +SKIP
    """

    accepts_loss_kwargs = True  # Trainer asks for it, and then leaves the division to the model

    def __init__(self, model: nn.Module, guide: AttentionGuide, elbo: AttentionELBO | None = None) -> None:
        super().__init__()
        check_guide(guide)
        self.elbo = AttentionELBO(kl_weight=0.01, kl_mean=True) if elbo is None else elbo
        self.objective = self.elbo(model, guide)
        # Trainer reads it: the first label is no target of a model that predicts the next token
        self.loss_type = "ForCausalLM" if likelihood_of(model) is _next_tokens else None
        if "QuestionAnswering" in type(base_model(model)).__name__:
            self.__class__ = _QuestionAnswering
        # the files of Trainer's checkpoints hold no tensor twice
        self.register_state_dict_post_hook(_leave_out_ties)
        self.register_load_state_dict_pre_hook(_put_in_ties)

    @property
    def model(self) -> Any:  # whatever model was passed: of transformers or of PEFT
        """Bayesian model, which is saved by its ``save_pretrained``."""
        return self.objective.model

    @property
    def config(self) -> Any:  # of the class of the model
        """Configuration of the model. Trainer switches its ``use_cache`` off, as for any other model."""
        return base_model(self.model).config

    @property
    def main_input_name(self) -> str:
        """Name of the model's main input, which Trainer counts and hands to metrics."""
        return base_model(self.model).main_input_name

    @property
    def generation_config(self) -> Any:  # of transformers
        """Options of ``generate``, which Seq2SeqTrainer reads and sets."""
        return self.model.generation_config

    @generation_config.setter
    def generation_config(self, options: Any) -> None:
        self.model.generation_config = options

    def generate(self, *args: object, **kwargs: object) -> Output:
        """Generate at the mean weights, as Seq2SeqTrainer does for ``predict_with_generate=True``."""
        return self.model.generate(*args, **kwargs)

    def get_input_embeddings(self) -> Any:  # a module of the model
        """Return the embeddings of the tokens, to which Trainer adds noise for ``neftune_noise_alpha=``."""
        return self.model.get_input_embeddings()

    def forward(
        self, labels: Tensor | None = None, *, num_items_in_batch: Tensor | int | None = None, **inputs: object
    ) -> dict[str, Tensor]:
        """Return the loss of a batch, and the logits of the draw that it was computed with.

        Args:
            labels: Labels of the batch; for question answering pass ``start_positions`` and ``end_positions`` instead.
            num_items_in_batch: Number of observations N to divide by; those of this batch by default.
            inputs: Inputs of the model by name.

        Returns:
            ``loss`` in nats per observation, and ``logits``.
        """
        inputs |= {} if labels is None else {"labels": labels}
        inputs.pop("return_dict", None)  # it is no input of the network
        labels_given = {name: label for name in _LABELS if isinstance(label := inputs.get(name), Tensor)}
        if not labels_given:
            raise TypeError(
                f"the batch has {', '.join(inputs)}, expected labels among them; Trainer takes them out for "
                f"label_smoothing_factor= and compute_loss_func=, whose losses have no KL: leave both out; smooth "
                f"labels by bayesian(..., likelihood=f), where f(output, labels) calls pyro.factor"
            )
        drawn: list[Tensor] = []
        handle = self.model.register_forward_hook(lambda _, __, output: drawn.append(output.detach()))
        try:
            loss = self.objective(**inputs)
        finally:
            handle.remove()
        if num_items_in_batch is None:
            num_items_in_batch = _observations(labels_given, shifted=self.loss_type is not None)
        count = torch.as_tensor(num_items_in_batch, device=loss.device).clamp(min=1)  # 0 where no label counts
        return {"loss": loss / count, "logits": drawn[-1]}

    def activation_checkpointing_enable(self, *_: object, **__: object) -> None:
        """Refuse what Trainer calls for ``activation_checkpointing=True``, in older versions ``gradient_``.

        Raises:
            ValueError: In any case.
        """
        raise ValueError(
            "checkpointing runs the layers once more at the backward pass, where the weights would be drawn anew; "
            "leave gradient_checkpointing=True and activation_checkpointing=True out, and take smaller batches with "
            "gradient_accumulation_steps="
        )

    gradient_checkpointing_enable = activation_checkpointing_enable


class _QuestionAnswering(ELBOModel):
    """Trainer reads the names of the labels off the class: its name, and the arguments of forward."""

    def forward(  # type: ignore[override]
        self, start_positions: Tensor | None = None, end_positions: Tensor | None = None, **inputs: Any
    ) -> dict[str, Tensor]:
        return super().forward(start_positions=start_positions, end_positions=end_positions, **inputs)


def _ties(module: nn.Module) -> dict[str, str]:
    """Return names of parameters that have an earlier name, too, which is the value."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(p), name)) for name, p in module.named_parameters(remove_duplicate=False)]
    return {name: earlier for name, earlier in named if name != earlier}


def _leave_out_ties(module: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    for name in _ties(module):
        del state[prefix + name]


def _put_in_ties(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    for name, earlier in _ties(module).items():
        if prefix + earlier in state:
            state.setdefault(prefix + name, state[prefix + earlier])
