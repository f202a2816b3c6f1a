"""The negative ELBO as a model that Trainer, Lightning and plain loops take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_attention.guide import AttentionGuide, check_guide
from pyro_attention.integrations.huggingface.likelihoods import LABELS, likelihood_of, next_tokens, observations
from pyro_attention.objectives.elbo import AttentionELBO

__all__ = ["ELBOModel"]


class ELBOModel(nn.Module):
    r"""A Bayesian model whose loss is the negative ELBO per observation, the KL included.

    .. math:: -\frac{1}{N} \sum_n \bigl( \mathrm{E}_q[\log p(y_n \mid W_n)] - w\,\mathrm{KL}_n \bigr)

    The weights of an example are its own, so the KL is a sum over examples as the likelihood is, and each example
    brings its KL once: by default w is 0.01, and KL_n the mean over its attention weights, of which there may be a
    million. ``AttentionELBO()`` takes their sum, as the bound on the evidence does. Trainer takes the module as its
    model: it is called with a batch and returns ``loss`` and ``logits``, and where Trainer accumulates gradients it
    tells N, the labels of all micro batches, in ``num_items_in_batch``; so k of them give the gradient of one batch of
    k times the size. Without it N is the number of labels of the batch at hand: where a loop, or Lightning, divides by
    k itself, the same holds for micro batches with as many labels each. A state dict holds shared parameters once.

    Give Trainer ``remove_unused_columns=False``: it cannot see which inputs the model inside takes.

    Labels that do not count (-100) are no observations. An answer, with its start and its end, is one.

    Args:
        model: A model of :func:`bayesian`.
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
        likelihood_of(model)
        if "QuestionAnswering" in type(model).__name__:
            self.__class__ = _QuestionAnswering
        # the files of Trainer's checkpoints hold no tensor twice
        self.register_state_dict_post_hook(_leave_out_ties)
        self.register_load_state_dict_pre_hook(_put_in_ties)

    @property
    def model(self) -> Any:
        """The Bayesian model, which saves itself by ``save_pretrained``."""
        return self.objective.model

    def forward(
        self, labels: Tensor | None = None, *, num_items_in_batch: Tensor | int | None = None, **inputs: Any
    ) -> dict[str, Tensor]:
        """Loss of a batch, and the logits of the draw that it was made with.

        Args:
            labels: Of the batch; for question answering ``start_positions`` and ``end_positions`` among the inputs.
            num_items_in_batch: Number of observations N to divide by; those of this batch by default.
            inputs: Of the model.
        """
        inputs |= {} if labels is None else {"labels": labels}
        labels_given = {name: inputs[name] for name in LABELS if inputs.get(name) is not None}
        if not labels_given:
            raise TypeError(f"the batch has {', '.join(inputs)}, expected labels among them")
        drawn: list[Tensor] = []
        handle = self.model.register_forward_hook(lambda _, __, output: drawn.append(output.detach()))
        try:
            loss = self.objective(**inputs)
        finally:
            handle.remove()
        count = observations(labels_given, shifted=_predicts_next(self.model)) if num_items_in_batch is None else None
        total = torch.as_tensor(num_items_in_batch if count is None else count, device=loss.device)
        return {"loss": loss / total, "logits": drawn[-1]}


class _QuestionAnswering(ELBOModel):
    """Trainer reads the names of the labels off the class: its name, and the arguments of forward."""

    def forward(  # type: ignore[override]
        self, start_positions: Tensor | None = None, end_positions: Tensor | None = None, **inputs: Any
    ) -> dict[str, Tensor]:
        return super().forward(start_positions=start_positions, end_positions=end_positions, **inputs)


def _ties(module: nn.Module) -> dict[str, str]:
    """Names of parameters that are there under an earlier name too, which is the value."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(p), name)) for name, p in module.named_parameters(remove_duplicate=False)]
    return {name: earlier for name, earlier in named if name != earlier}


def _leave_out_ties(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _ties(module):
        del state[prefix + name]


def _put_in_ties(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, earlier in _ties(module).items():
        if prefix + earlier in state:
            state.setdefault(prefix + name, state[prefix + earlier])


def _predicts_next(model: Any) -> bool:
    """Whether the first label is no target."""
    return likelihood_of(model) is next_tokens
