"""A network of torch, PyG or Hugging Face made Bayesian in one call, which gives model, guide and loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pyro
import torch
from pyro.distributions import Categorical, Normal, TorchDistribution
from pyro.poutine import runtime
from torch import Tensor, nn

from pyro_attention import schemes
from pyro_attention._typing import Args, Kwargs
from pyro_attention.families.base import Family, Prior
from pyro_attention.guide import AttentionGuide
from pyro_attention.integrations import pyg, torch_nn
from pyro_attention.layers.multihead import MultiheadAttention
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.schemes import Scheme, WeightsSchemeName

__all__ = ["BayesianNetwork", "Likelihood", "ObservedNetwork", "bayesian"]

# a function gives a distribution; for a model of transformers it samples, and returns nothing
Likelihood: TypeAlias = Literal["classification", "regression"] | Callable[..., Any]
"""Likelihood of a network: its name, or a function of the output that returns a distribution."""

# with a KL, whose sum over all weights of a converted network would outweigh the data
_WITH_KL = ("weibull", "lognormal", "gamma", "gaussian")
_TORCH_LAYERS = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)


class BayesianNetwork(NamedTuple):
    """Model, guide and loss of a network, made by :func:`bayesian`.

    Attributes:
        model: The Pyro model: the network and the distribution of what is observed.
        guide: The guide over the model, for :func:`predict` and :func:`sample_posterior`.
        loss: Module that holds model and guide; a call with a batch returns the loss to be minimized.
    """

    model: nn.Module
    guide: AttentionGuide
    loss: nn.Module


def bayesian(
    network: nn.Module,
    scheme: WeightsSchemeName | Scheme = "weibull",
    *,
    likelihood: Likelihood | None = None,
    sites: str | Sequence[str] = "*",
    batch_dim: int | None = None,
    **options: object,
) -> BayesianNetwork:
    """Make the attention of a network Bayesian, in place, and return model, guide and loss.

    =========================================== ==========================================================
    network holds                               model, and call of the loss
    =========================================== ==========================================================
    ``nn.MultiheadAttention``, as torch's       :class:`ObservedNetwork`, ``loss(*inputs, y=y)``: negative
    transformers and torchvision's do           ELBO of a batch in nats
    ``GATConv`` or ``GATv2Conv`` of PyG         :class:`ObservedNetwork` of one graph, ``loss(x, edge_index,
                                                y=y, observed=train_mask)``
    a ``PreTrainedModel`` of transformers,      the network itself, ``loss(**batch)["loss"]``: negative ELBO
    or a ``PeftModel`` of one                   per observation, which Trainer takes (``ELBOModel``)
    =========================================== ==========================================================

    Under the scheme "soft", and where Pyro does not run it, the network computes the same numbers as before. It keeps
    its parameters; make the optimizer of ``loss.parameters()`` after the call. The KL is the mean over all
    attention weights with the weight 0.01 (``kl_mean=True``, ``kl_weight=0.01``), unless options say otherwise.

    Args:
        network: The network, changed in place.
        scheme: Name of a scheme of attention weights (:func:`scheme`), or the scheme.
        likelihood: Distribution of the observations: "classification" (logits in the last dimension), "regression"
            (normal, with a trained standard deviation), or a function of the output, such as ``lambda output:
            Normal(output, 0.1)``. A model of transformers has the likelihood of its head, or takes a function of output
            and labels.
        sites: One pattern or several, as in ``fnmatch``, of the paths of the attentions to convert.
        batch_dim: Dimension of the batch in the first input; 0 by default, and 1 where the network is one of torch's
            own layers without ``batch_first``. Not for graphs and transformers.
        options: Options of the scheme.

    Raises:
        TypeError: The network is no module, or the scheme has no such option.
        ValueError: The network holds no attention that can be converted, the scheme is one of alignments, or the
            likelihood is missing or unknown.

    Example:
        >>> from pyro_attention import bayesian, predict
        >>> encoder = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
        >>> network = nn.Sequential(encoder, nn.Linear(8, 3))
        >>> model, guide, loss = bayesian(network, "weibull", likelihood="classification", concentration=5.0)
        >>> x, y = torch.randn(4, 6, 8), torch.randint(3, (4, 6))
        >>> loss(x, y=y).shape, predict(guide, x, num_samples=5).mean.shape
        (torch.Size([]), torch.Size([4, 6, 3]))

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network is a {type(network).__name__}, expected a module of torch, PyG or transformers")
    chosen = _scheme_of_weights(scheme, options)
    prior = _prior_of_width(chosen)
    if _is_of_transformers(network):
        return _of_transformers(network, chosen, prior, sites, likelihood)
    if isinstance(network, ObservedNetwork):
        raise ValueError("the network is Bayesian already; take the network inside of it, or the model, guide and loss")
    return _of_layers(network, chosen, prior, sites, likelihood, batch_dim)


class ObservedNetwork(nn.Module):
    """Network as a Pyro model: its batch lies in a plate, and the observations have a distribution given its output.

    The plate is ``batch``, and the site of the observations ``y``. Observations of a graph have no plate: they are one
    event.

    Args:
        network: The network; of a tuple that it returns, such as output and weights, the first entry is its output.
        likelihood: See :func:`bayesian`.
        batch_dim: Dimension of the batch in the first input; None for a graph.

    Raises:
        ValueError: The likelihood is missing or unknown.

    Example:
        >>> model = ObservedNetwork(nn.Linear(2, 3), "classification")
        >>> model(torch.zeros(4, 2), y=torch.tensor([0, 1, 2, 0])).shape
        torch.Size([4, 3])
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood | None, *, batch_dim: int | None = 0) -> None:
        super().__init__()
        names = get_args(get_args(Likelihood)[0])
        if not callable(likelihood) and likelihood not in names:
            raise ValueError(
                f"likelihood is {likelihood!r}, expected one of {', '.join(map(repr, names))}, or a function of the "
                f"output that gives a distribution, such as lambda output: Normal(output, 0.1)"
            )
        self.network, self.likelihood, self.batch_dim = network, likelihood, batch_dim
        self.log_scale: nn.Parameter | None = None
        if likelihood == "regression":
            like = next(network.parameters(), torch.zeros(()))
            self.log_scale = nn.Parameter(torch.zeros((), dtype=like.dtype, device=like.device))

    def forward(
        self, *inputs: object, y: Tensor | None = None, observed: Tensor | None = None, **kwargs: object
    ) -> Tensor:
        """Run the network, observe y, and return the output.

        Args:
            inputs: Arguments of the network.
            y: Observations ``[B, ...]``, or of the nodes of a graph; nothing is observed when omitted.
            observed: Boolean mask, True where an observation counts, of the shape of ``y`` or of its first dimensions.
            kwargs: Keyword arguments of the network.

        Raises:
            ValueError: Observations of another shape than their distribution.
        """
        with nullcontext() if self.batch_dim is None else pyro.plate("batch", self._batch_size(inputs, kwargs), dim=-1):
            output = self.network(*inputs, **kwargs)
            output = output[0] if isinstance(output, tuple) else output
            if y is not None:
                self._observe(output, y, observed)
        return torch.as_tensor(output)

    def distribution(self, output: Tensor) -> TorchDistribution:
        """Return the distribution of the observations, given the output."""
        if callable(self.likelihood):
            distribution: TorchDistribution = self.likelihood(output)
            return distribution
        if self.log_scale is None:
            return Categorical(logits=output.float())
        return Normal(output, self.log_scale.exp())

    def _observe(self, output: Tensor, y: Tensor, observed: Tensor | None) -> None:
        if self.batch_dim == 1 and output.dim() > 2:
            output = output.transpose(-3, -2)  # the length was in front
        distribution = self.distribution(output)
        shape = distribution.shape()
        # y may lack the dimensions of the draws of one pass, at the left of the batch, and no others
        dims_of_draws = sum(frame.name != "batch" for frame in runtime.get_plates())
        expected = shape[max(0, min(dims_of_draws, len(shape) - y.dim())) :]
        if y.shape != expected:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, expected {tuple(expected)} as its distribution {distribution}; reshape "
                f"y or the output of the network, whose dimensions count from the right (x[..., 0, :]) where several "
                f"draws are made in one pass"
            )
        items = y.dim() - len(distribution.event_shape)
        if observed is not None:
            distribution = distribution.mask(observed.reshape(*observed.shape, *[1] * (items - observed.dim())))
        pyro.sample("y", distribution.to_event(items - (self.batch_dim is not None)), obs=y)

    def _batch_size(self, inputs: Args, kwargs: Kwargs) -> int:
        """Return the size of the batch in the first tensor among the inputs."""
        first = next((value for value in (*inputs, *kwargs.values()) if isinstance(value, Tensor)), None)
        if first is None or self.batch_dim is None or first.dim() <= self.batch_dim:
            actual = "no tensor" if first is None else f"a tensor of shape {tuple(first.shape)}"
            raise ValueError(f"the network was given {actual} first, expected one with a batch at {self.batch_dim}")
        if not first.size(self.batch_dim):
            problem = f"the network was given an empty batch, a tensor of shape {tuple(first.shape)}"
            raise ValueError(f"{problem}, expected at least one item; leave it out")
        return first.size(self.batch_dim)


def _scheme_of_weights(scheme: WeightsSchemeName | Scheme, options: Kwargs) -> Scheme:
    """Return the scheme; ValueError where it is one of alignments."""
    name = scheme.name if isinstance(scheme, Scheme) else scheme
    if isinstance(scheme, Family):
        problem = f"scheme is the family {scheme!r}, expected the name of a scheme, with its numbers as options"
        raise TypeError(f"{problem}: bayesian(network, 'lognormal', scale=0.5)")
    if isinstance(scheme, Scheme):
        if options:
            raise TypeError(f"options are {', '.join(options)}, expected none beside a Scheme; give them to scheme()")
        chosen = scheme
    else:
        defaults: Kwargs = {"kl_weight": 0.01, "kl_mean": True} if scheme in _WITH_KL else {}
        chosen = schemes.scheme(scheme, **{**defaults, **options})
    if chosen.amortized or chosen.is_of_alignments:
        raise ValueError(
            f"scheme '{name}' is one of alignments, where a query attends to one key, but layers of torch, PyG and "
            f"transformers hold all queries and heads in one site; expected one of "
            f"{', '.join(get_args(WeightsSchemeName))}, or write the model with LatentAttention"
        )
    return chosen


def _of_layers(
    network: nn.Module,
    scheme: Scheme,
    prior: Callable[[int], Prior],
    sites: str | Sequence[str],
    likelihood: Likelihood | None,
    batch_dim: int | None,
) -> BayesianNetwork:
    """Make a network with layers of torch or PyG Bayesian, in place."""
    of_torch, of_graphs = _holds_torch_attention(network), any(map(pyg.is_attention, network.modules()))
    if not of_torch and not of_graphs:
        raise ValueError(
            f"{type(network).__name__} holds no attention that can be converted, expected torch.nn.MultiheadAttention, "
            f"GATConv or GATv2Conv of torch_geometric, or a PreTrainedModel; write its attention by LatentAttention"
        )
    if of_torch and of_graphs and sites != "*":
        raise ValueError(
            f"{type(network).__name__} holds attention of torch and of torch_geometric, and sites is {sites!r}, "
            f"expected '*'; convert some of it by bayesian() of pyro_attention.integrations.torch_nn and .pyg"
        )
    if batch_dim is None:
        batch_dim = 1 if isinstance(network, _TORCH_LAYERS) and not _is_batch_first(network) else 0
    model = ObservedNetwork(network, likelihood, batch_dim=None if of_graphs else batch_dim)
    if of_torch:
        model.network = torch_nn.bayesian(model.network, prior=prior, sites=sites)
    if of_graphs:
        model.network = pyg.bayesian(model.network, prior=prior, sites=sites)
    guide = scheme.guide(model)
    objective = scheme.objective(max_plate_nesting=0 if of_graphs else 1)
    return BayesianNetwork(model, guide, objective(model, guide))


def _prior_of_width(scheme: Scheme) -> Callable[[int], Prior]:
    """Return the prior of a scheme as a function of the width of a head."""
    return lambda width: scheme.prior(width, 1)


def _is_of_transformers(network: nn.Module) -> bool:
    """Return whether a network is a model of transformers, also with an adapter of PEFT."""
    transformers, peft = sys.modules.get("transformers"), sys.modules.get("peft")
    if peft is not None and isinstance(network, peft.PeftModel | peft.PeftMixedModel):
        return True
    return transformers is not None and bool(isinstance(network, transformers.PreTrainedModel))


def _of_transformers(
    network: nn.Module,
    scheme: Scheme,
    prior: Callable[[int], Prior],
    sites: str | Sequence[str],
    likelihood: Likelihood | None,
) -> BayesianNetwork:
    """Make a model of transformers Bayesian, in place."""
    from pyro_attention.integrations import huggingface  # which imports transformers

    if isinstance(likelihood, str):
        raise ValueError(
            f"likelihood is {likelihood!r}, but {type(network).__name__} has the likelihood of its head; leave it out, "
            f"or pass a function of output and labels"
        )
    model = huggingface.bayesian(network, prior=prior, sites=sites, likelihood=likelihood)
    guide = scheme.guide(model)
    objective = scheme.objective(max_plate_nesting=1)
    assert isinstance(objective, AttentionELBO)
    return BayesianNetwork(model, guide, huggingface.ELBOModel(model, guide, objective))


def _holds_torch_attention(network: nn.Module) -> bool:
    parts = [part for part in network.modules() if isinstance(part, nn.MultiheadAttention)]
    return any(not isinstance(part, MultiheadAttention) for part in parts)


def _is_batch_first(network: nn.Module) -> bool:
    """Return whether the first attention of one of torch's own layers has the batch in front."""
    return next(bool(part.batch_first) for part in network.modules() if isinstance(part, nn.MultiheadAttention))
