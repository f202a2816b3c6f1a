"""LatentAttention, the only module of the library that samples attention weights; all layers hold one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from pyro.contrib.autoname.scoping import NameCountMessenger, ScopeMessenger
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from pyro.poutine.markov_messenger import MarkovMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_attention._checks import as_float, check_kind, check_scores, in_transform
from pyro_attention._compat import active_handlers, is_in_backward_pass, validates_distributions
from pyro_attention._typing import Model
from pyro_attention.attention_call import AttentionCall, enter
from pyro_attention.families.base import Prior
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.noise import Dropout

if TYPE_CHECKING:
    from pyro_attention.ops.segment import Segments

__all__ = ["AttentionOutput", "LatentAttention", "check_not_recomputed", "name_sites", "pyro_runs_the_model"]

# A model enters these by itself, also where somebody calls it like any other module.
_ANNOTATIONS = (
    IndepMessenger, MarkovMessenger, MaskMessenger, ScaleMessenger, InferConfigMessenger, NameCountMessenger,
    ScopeMessenger,
)  # fmt: skip

# These give sites values that come from outside, Predictive among them.
_VALUE_GIVERS = (ConditionMessenger, DoMessenger, ReplayMessenger)


def pyro_runs_the_model() -> bool:
    """Return whether a handler is active that draws, replaces or records sites; see :class:`LatentAttention`."""
    return not all(isinstance(handler, _ANNOTATIONS) for handler in active_handlers())


def check_not_recomputed(site: str) -> None:
    """Raise RuntimeError where a backward pass computes a site anew, as gradient checkpointing does.

    The guide is no longer active then, so that the site would have another value than in the forward pass. Where Pyro
    runs the model in the backward pass, a whole run is repeated, as chunks of EvidenceELBO are.
    """
    if not torch.compiler.is_exporting() and is_in_backward_pass() and not pyro_runs_the_model():
        raise RuntimeError(
            f"site '{site}' is recomputed during backward, where no guide is active; checkpoint only the deterministic "
            f"parts around LatentAttention"
        )


class LatentAttention(nn.Module):
    r"""Attention whose weights are a Pyro sample site.

    .. math:: S \sim p(S), \qquad W = \mathrm{normalize}(S), \qquad O = W V

    The value of the site is ``log S``. A guide draws it from a posterior; without a guide it is drawn from the prior.
    Where Pyro does not run the model (no handler is active but plates, scopes of names, ``poutine.mask``, ``scale``,
    ``infer_config`` or ``seed``), this is ordinary attention: the deterministic weights of ``Soft()``.

    Args:
        name: Name of the sample site.
        prior: Prior network.
        normalizer: Map from log weights to weights; :class:`Softmax` by default.
        dropout: Probability of dropping a weight after normalization, in training mode.
        normalize_scores: Enter the site with scores normalized as the weights are: log-softmax, for a bounded KL. False
            gives the paper's raw ``exp(score)``, and the same weights.

    Raises:
        TypeError: The prior is no :class:`Prior`, or the normalizer no :class:`Normalizer`.
        ValueError: A normalizer over queries with an alignment, Dirichlet or Gaussian prior.

    Example:
        >>> from pyro_attention import AttentionGuide, FixedGammaPrior, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     return attention(scores, values).context
        >>> guide = AttentionGuide(model, Weibull(concentration=10.0))
        >>> draw = guide(torch.zeros(2, 3, 4), torch.randn(2, 4, 8))
        >>> draw["attention"].shape
        torch.Size([2, 3, 4])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.
    """

    default_name: str | None = None  # of one without a name of its own, which gets the path of the layer that holds it

    def __init__(
        self,
        name: str,
        prior: Prior,
        *,
        normalizer: Normalizer | None = None,
        dropout: float = 0.0,
        normalize_scores: bool = True,
    ) -> None:
        super().__init__()
        check_kind(f"site '{name}': prior", prior, Prior, "FixedGammaPrior(concentration=1.0, rate=1.0)")
        normalizer = Softmax() if normalizer is None else normalizer
        check_kind(f"site '{name}': normalizer", normalizer, Normalizer, "Softmax()")
        if normalizer.over_queries and prior.kind != Prior.kind:
            problem = f"{type(normalizer).__name__} normalizes over queries, but weights under {type(prior).__name__}"
            raise ValueError(f"site '{name}': {problem} belong to one; use Softmax(), or a Gamma or LogNormal prior")
        self.name, self.prior, self.normalizer = name, prior, normalizer
        self.dropout = Dropout(dropout)
        self.normalize_scores = normalize_scores

    def forward(
        self,
        scores: Tensor,
        values: Tensor,
        *,
        keys: Tensor | None = None,
        queries: Tensor | None = None,
        layout: Layout | None = None,
    ) -> AttentionOutput:
        """Sample the weights and aggregate the values.

        The record of the call (:meth:`make_call`, which normalizes the scores) gives the prior. The site is drawn from
        it or, under a guide, from the posterior (:meth:`sample`). The value becomes weights: ``prior.weights`` reads
        it, whoever drew it; for log S this is the softmax of the layout.

        Args:
            scores: ``[..., H, M, N]`` dense, ``[..., H, N]`` under ``Dense(event_dim=2)``, where queries lie in plates,
                or ``[..., E, H]`` on a graph.
            values: ``[..., H, N, D]`` dense, ``[..., N, H, D]`` on a graph.
            keys: Keys for a contextual prior or a network of widths, shaped like the values.
            queries: Queries for a network of widths: ``[..., H, M, D]`` dense, ``[..., H, D]`` where queries lie in
                plates, ``[..., N, H, D]`` on a graph.
            layout: Mask and structure; dense without a mask by default.

        Returns:
            Weights, shaped like the scores, and the context: ``[..., H, M, D]`` dense, ``[..., H, D]`` where queries
            lie in plates, ``[..., N, H, D]`` on a graph.

        Raises:
            ValueError: Shapes do not fit, scores are not finite, keys are missing, or normalized weights are given as
                the value of a site that holds their logarithms (``poutine.condition``, ``do``, ``replay``,
                ``Predictive``).
            TypeError: Values are no floating-point numbers.
            RuntimeError: Called from inside a backward pass (gradient checkpointing).
        """
        layout = Dense() if layout is None else layout
        if not values.is_floating_point():
            raise TypeError(f"site '{self.name}': values are of type {values.dtype}, expected floating-point numbers")
        check_not_recomputed(self.name)
        check_scores(scores, site=self.name, mask=layout.mask)
        layout.check(scores, site=self.name)
        self.normalizer.check(layout, site=self.name)
        layout.check_values(values, scores, site=self.name)
        device = scores.device.type  # where autocast would redo the softmax inputs in half precision
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            call = self.make_call(as_float(scores), layout=layout, queries=queries, keys=keys)
            prior = self.prior(call)
            value = self.sample(call, prior)
            weights = self.dropout(prior.weights(value, self.normalizer))
        context = prior.context(value, weights.to(values.dtype), values)
        return AttentionOutput(context=context, weights=weights, rows=prior.rows(value, site=self.name))

    def make_call(
        self, scores: Tensor, *, layout: Layout, queries: Tensor | None = None, keys: Tensor | None = None
    ) -> AttentionCall:
        """Return the record of one call, from which prior and posterior are made.

        Args:
            scores: Scores in 32 bits or more; see :meth:`forward`.
            layout: Mask and structure.
            queries: Queries, for a network of widths.
            keys: Keys, for a contextual prior or a network of widths.
        """
        normalizes = self.normalize_scores and self.prior.normalizes
        return AttentionCall(
            scores=enter(scores, layout, self.normalizer if normalizes else None), layout=layout,
            normalizer=self.normalizer, normalizes=normalizes, queries=queries, keys=keys, site=self.name,
            reads_scores=self.prior.reads_scores,
        )  # fmt: skip

    def sample(self, call: AttentionCall, prior: AttentionDistribution) -> Tensor:
        """Draw the value of the site; where Pyro does not run the model, return the value of ordinary attention."""
        if not pyro_runs_the_model():
            return prior.soft_value(call)
        _check_plates_fit(self.name, prior)
        _check_replayed(self.name, prior)
        infer: Any = {"call": call}  # a key of this library, beside those that Pyro declares
        assert isinstance(prior, TorchDistributionMixin)
        value = torch.as_tensor(pyro.sample(self.name, prior, infer=infer))
        if validates_distributions():
            for handler in active_handlers():
                if isinstance(handler, _VALUE_GIVERS) and _gives(handler, value):
                    _check_not_weights(value, call, prior)
        return value

    def extra_repr(self) -> str:
        return f"'{self.name}', normalize_scores={self.normalize_scores}"


def _check_plates_fit(name: str, prior: AttentionDistribution) -> None:
    """Raise ValueError where the scores have another number of items than a plate around them."""
    for handler in active_handlers():
        if isinstance(handler, IndepMessenger) and handler.dim is not None and -handler.dim <= len(prior.batch_shape):
            size = getattr(handler, "subsample_size", handler.size)
            items = prior.batch_shape[handler.dim]
            if items not in (1, size) and size != -1:
                raise ValueError(
                    f"site '{name}': its scores have {items} items at dimension {handler.dim} of the batch "
                    f"{tuple(prior.batch_shape)}, expected {size}, as plate '{handler.name}' around it has; items come "
                    f"first, so sequences that come first need x.transpose(0, 1), as for batch_first=True"
                )


def _check_replayed(name: str, prior: AttentionDistribution) -> None:
    """Raise TypeError where the model is replayed with values that a guide has drawn of something else."""
    for handler in active_handlers():
        if isinstance(handler, ReplayMessenger) and handler.trace is not None and name in handler.trace:
            site = handler.trace.nodes[name]
            if site["type"] == "sample" and site["value"] is not None:
                prior.check_posterior(site["fn"], site["value"], site=name)


@dataclass(frozen=True)
class AttentionOutput:
    """Output of :class:`LatentAttention`, and of the method ``attend`` of the other layers.

    Attributes:
        context: Weighted sum of the values; for other layers their output.
        weights: Weights of this sum, after dropout; None if they were not requested.
        self_loop_weights: Weights of the self loops that a graph layer added, ``[..., N, H]``; None otherwise.
        rows: For an alignment over edges the name of its site, and the node of each row of the context if rows are
            edges that are summed over (with one row for a node without edges); None otherwise.
    """

    context: Tensor
    weights: Tensor | None
    self_loop_weights: Tensor | None = None
    rows: tuple[str, Segments | None] | None = None

    def at_rows(self, nodes: Tensor) -> Tensor:
        """Return values of nodes ``[..., N, D]`` in the rows of the context.

        They come back unchanged, or spread over the edges where edges are summed over.
        """
        return nodes if self.rows is None or self.rows[1] is None else self.rows[1].spread(nodes)


def name_sites(model: Model) -> list[str]:
    """Name the site of every layer without a name after its path; return the names of all attention sites.

    An :class:`AttentionGuide` does this if its model is a module or a method of a module; else call it once yourself.
    It does nothing for a function, whose modules are unknown.

    Example:
        >>> from pyro_attention import MultiheadAttention
        >>> name_sites(nn.Sequential(MultiheadAttention(4, 2), MultiheadAttention(4, 2, name="last")))
        ['0', 'last']
    """
    model = poutine.unwrap(model)
    owner = getattr(model, "__self__", model)
    parts = owner.named_modules() if isinstance(owner, nn.Module) else ()
    layers = [(path, part) for path, part in parts if isinstance(part, LatentAttention)]
    for path, layer in layers:
        if layer.default_name is not None:
            layer.name = path.rpartition(".")[0] or layer.default_name
    return [layer.name for _, layer in layers]


def _gives(handler: ConditionMessenger | DoMessenger | ReplayMessenger, value: Tensor) -> bool:
    """Return whether a handler has given a site this value: by identity, as handlers between them may rename sites."""
    data: object = handler.trace if isinstance(handler, ReplayMessenger) else handler.data
    if isinstance(data, Trace):
        return any(site.get("value") is value for site in data.nodes.values())
    return isinstance(data, Mapping) and any(given is value for given in data.values())


def _check_not_weights(value: Tensor, call: AttentionCall, prior: AttentionDistribution) -> None:
    r"""Raise ValueError where a value that stands for log weights is normalized weights.

    These are at least 0 and sum to one over the keys of every query. Log weights of a continuous distribution do so,
    up to rounding, with a probability of zero. Where weights are the value itself (alignments, Gaussian weights), and
    where every query has one key, nothing can be misread.
    """
    if not value.is_floating_point() or in_transform(value) or not (value >= 0).all():
        return
    exact = as_float(value)
    tiny = torch.finfo(exact.dtype).tiny
    rounding = max(1e-5, 4 * torch.finfo(value.dtype).eps)
    is_normalized = ((prior.layout.softmax(exact.clamp_min(tiny).log()) - exact).abs() <= rounding).all()
    if is_normalized and ((prior.weights(exact, call.normalizer) - exact).abs() > rounding).any():
        raise ValueError(
            f"site '{call.site}': the value that was given is normalized weights (>= 0, with a sum of one over the "
            f"keys of every query), expected their logarithms, log S, such as from sample_sites or "
            f"sample_posterior(..., log_weights=True); take weights.clamp_min(1e-30).log() for your own weights, or, "
            f"where these numbers are log weights indeed, run it under pyro.validation_enabled(False)"
        )
