"""Exact posteriors of alignments by Bayes' rule, and posterior attention of weights that mix keys."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_attention.alignments._messages import as_site, site_of
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.alignments.enumeration import AlignmentELBO
from pyro_attention.alignments.posteriors import Marginal
from pyro_attention.draws import Minibatch
from pyro_attention.families.distribution import AttentionDistribution, LogWeights
from pyro_attention.guide import AttentionGuide, is_attention_site, is_deterministic, plates_of
from pyro_attention.layout import Dense
from pyro_attention.objectives.evidence import sum_to_items
from pyro_attention.objectives.validation import PriorWarning
from pyro_attention.posterior.passes import Run, depth, evaluation_mode, is_latent, passes
from pyro_attention.posterior.sampling import sample_posterior

if TYPE_CHECKING:
    from pyro_attention._typing import Message, Trace
    from pyro_attention.alignments._messages import Site

__all__ = ["exact_alignments", "posterior_attention"]


def exact_alignments(
    model: Callable[..., object], *args: Any, max_plate_nesting: float = float("inf"), **kwargs: Any
) -> dict[str, Tensor]:
    r"""Return the exact posterior of every alignment given the observations of the model: no guide, no samples.

    .. math:: p(z = n \mid x, y) = \frac{p(z = n \mid x)\, f(y \mid z = n)}{\sum_m p(z = m \mid x)\, f(y \mid z = m)}

    The posterior is the gradient of the log evidence by the log prior. So each alignment has its marginal posterior
    also where several alignments explain one observation together, and where they depend on each other, as in a hidden
    Markov model, or on discrete latents that are summed out too. It costs a training step under :class:`Marginal`.
    Modules run in evaluation mode (no dropout), and have their own mode again afterwards.

    Args:
        model: A Pyro model whose attention sites all have an alignment prior (:class:`AlignmentPrior` or
            :class:`SparseAlignmentPrior`), with the queries in plates, or on a graph, below :class:`NodeLikelihood`.
        args: Arguments of the model, with the observations.
        max_plate_nesting: Number of nested plates; guessed by one more run of the model when omitted.
        kwargs: Keyword arguments of the model.

    Returns:
        For every attention site its posterior probabilities, as rows of attention weights ``[..., 1, N]``, or of the
        edges of a graph, ``[..., E, 1]``, added self loops last. A query without an observation (masked out by
        ``poutine.mask``, or a node by the mask of its likelihood) keeps its prior.

    Warns:
        PriorWarning: The model has latent sites that are neither alignments nor summed out, such as weights of a
            network. They are drawn from their prior, once.

    Raises:
        TypeError: The model is a guide.
        ValueError: An attention site has another prior, the model has no attention site, or only such that are given,
            an observation has an ``obs_mask``, or, while Pyro validates, the evidence is not finite.

    Example:
        >>> import pyro, torch
        >>> from pyro_attention import AlignmentPrior, Dense, LatentAttention
        >>> attention, values = LatentAttention("alignment", AlignmentPrior()), torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> def model(scores, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 0.5), obs=y)
        >>> exact_alignments(model, torch.zeros(2, 1, 3), torch.tensor([0.0, 2.0]))["alignment"].mul(100).round().int()
        tensor([[[88, 12,  0]],
        <BLANKLINE>
                [[ 0, 12, 88]]], dtype=torch.int32)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """
    if isinstance(poutine.unwrap(model), GuideMessenger):
        raise TypeError("exact_alignments takes the model, not a guide: give it guide.model")
    elbo = AlignmentELBO(max_plate_nesting=max_plate_nesting)
    guide, tilted = AttentionGuide(model, Marginal()), _Tilted()
    with torch.inference_mode(False), torch.enable_grad(), evaluation_mode():
        args, kwargs = _outside_inference(args), _outside_inference(kwargs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PriorWarning)  # its remedies are those of a guide
                evidence = -elbo.differentiable_loss(model, tilted(guide), *args, **kwargs)
            if not tilted.tilts:
                raise ValueError(
                    "every alignment of the model is given, as by poutine.condition, so none has a posterior; leave "
                    "one out of what is given"
                )
            slopes = torch.autograd.grad(evidence, list(tilted.tilts.values()))
        except RuntimeError as error:
            if "nference tensor" not in str(error):
                raise
            raise ValueError(
                "exact_alignments takes gradients, which tensors that were made under torch.inference_mode() have not; "
                "those among the arguments are copied, so make the others (of the model, say, or within a layout) "
                "outside of it, or use torch.no_grad() (inference_mode=False of Lightning's Trainer)"
            ) from error
    if drawn := [name for name, is_drawn in tilted.is_drawn.items() if is_drawn]:
        warnings.warn(
            f"latent sites {', '.join(map(repr, drawn))} are drawn from their prior, once, and the posterior is "
            f"the one given this draw; give them values: poutine.condition(model, data={{'{drawn[0]}': ...}})",
            PriorWarning,
            stacklevel=2,
        )
    # normalized, as the evidence of a minibatch counts each of its items several times
    return {name: tilted.priors[name].normalize(slope) for name, slope in zip(tilted.tilts, slopes, strict=True)}


def _outside_inference(value: Any) -> Any:
    """Return a copy of the tensors among arguments that were made in inference mode."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, dict):
        return {key: _outside_inference(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_outside_inference, value))
    return value


def posterior_attention(
    guide: AttentionGuide,
    *args: Any,
    site: str | None = None,
    num_samples: int = 30,
    chunk_size: int = 1,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Compute the probability that each key explains the observation of a query, for weights that are soft or drawn.

    .. math:: p(z = n \mid x, y) \propto \mathrm{E}_q[W_n]\, f(y \mid z = n)

    The mean weights serve as the prior probability that a query reads key n alone, and Bayes' rule multiplies it by the
    likelihood of the observation given that key. A network that was trained with mixed values needs no further
    training; its alignments become better. It costs as many runs of the model as there are keys. Other latent sites
    ahead of the attention have one draw, which is the same for all keys.

    Args:
        guide: The guide, over a model whose queries lie in plates, each with its observation, and one head.
        args: Arguments of the model, with the observations.
        site: Name of the attention site, where there are several; the others have their mean weights.
        num_samples: Draws for the mean weights; one is enough under ``Soft()``.
        chunk_size: Draws in one pass at most.
        kwargs: Keyword arguments of the model.

    Returns:
        By the name of the site, rows of posterior probabilities ``[..., 1, N]``. A query whose observation is masked
        keeps its weights, and one without keys has zeros.

    Raises:
        ValueError: No site of that name, or several and no name; alignments, for which there is
            :func:`exact_alignments`; several heads; observations outside the plates of the site.

    Example:
        >>> import pyro, torch
        >>> from pyro_attention import Dense, FixedGammaPrior, LatentAttention, Soft
        >>> attention, values = LatentAttention("read", FixedGammaPrior()), torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> def model(scores, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 0.5), obs=y)
        >>> guide = AttentionGuide(model, Soft())
        >>> posterior_attention(guide, torch.zeros(2, 1, 3), torch.tensor([0.0, 2.0]))["read"].mul(100).round().int()
        tensor([[[88, 12,  0]],
        <BLANKLINE>
                [[ 0, 12, 88]]], dtype=torch.int32)

    Source: Shankar and Sarawagi (2019), Posterior Attention Models for Sequence to Sequence Learning, section 3.
    """
    with Minibatch():
        draws = sample_posterior(guide, *args, num_samples=num_samples, chunk_size=chunk_size, **kwargs)
        name = site if site is not None or len(draws) != 1 else next(iter(draws))
        if name not in draws:
            names = ", ".join(map(repr, draws))
            raise ValueError(f"site is {site!r}, expected one of {names}")
        weights, rows, ahead = draws[name].mean(0), list[Tensor](), dict[str, Tensor]()
        for key in range(weights.size(-1)):
            run = Run(guide, args, kwargs)
            with _AtKey(name, key, ahead), closing(passes(run, 1, "none", 1, None)) as runs:
                trace = next(runs).trace
            rows.append(_log_likelihood(trace, name))
            ahead = ahead or _drawn_ahead(trace, name)  # or keys would be compared under different draws
    # as logarithms: where keys of weight zero explain the observation best, all other products would round to zero
    log_products = weights.log() + torch.stack(rows, -1).unsqueeze(-2)
    without_keys = (weights == 0).all(-1, keepdim=True)
    return {name: log_products.softmax(-1).masked_fill(without_keys, 0)}


def _drawn_ahead(trace: Trace, name: str) -> dict[str, Tensor]:
    """Return the values of latent sites, but attention, that a model has drawn ahead of a site."""
    nodes = takewhile(lambda site: site["name"] != name, trace.nodes.values())
    return {site["name"]: site["value"] for site in nodes if is_latent(site) and not is_attention_site(site)}


def _log_likelihood(trace: Trace, name: str) -> Tensor:
    """Return the log likelihood of every query of a site, ``[...]``."""
    plates, total = plates_of(site_of(trace, name)), torch.zeros(())
    dims = [frame.dim for frame in plates.values()]
    for other in trace.observation_nodes:
        site = site_of(trace, other)
        if is_deterministic(site):
            continue
        missing = plates.keys() - plates_of(site).keys()
        if missing:
            raise ValueError(
                f"site '{other}' lies outside the plates {sorted(missing)} of '{name}', expected it inside"
            )
        log_f = sum_to_items(site["fn"].log_prob(site["value"]), site, dims)
        total = total + log_f.reshape(log_f.shape[max(0, log_f.dim() + min(dims, default=0)) :])
    return total


class _AtKey(Messenger):
    """Lets every query of a site read one key alone, and sets the values of sites ahead of it; around the guide."""

    def __init__(self, name: str, key: int, ahead: dict[str, Tensor]) -> None:
        super().__init__()
        self.name, self.key, self.ahead = name, key, ahead

    def _pyro_sample(self, msg: Message) -> None:
        site = as_site(msg)
        if site["name"] in self.ahead:
            site["value"] = self.ahead[site["name"]]
        if site["name"] != self.name:
            return
        prior: AttentionDistribution = site["infer"]["prior"]
        in_plates = isinstance(prior.layout, Dense) and prior.layout.event_dim == 2
        if prior.kind != LogWeights.kind or not in_plates or prior.full_shape[-2] != 1:
            raise ValueError(
                f"site '{self.name}' has {type(prior).__name__} of shape {tuple(prior.full_shape)}, expected positive "
                f"weights of one head [..., 1, keys] with the queries in plates; alignments have exact_alignments"
            )
        log_weights = site["infer"]["call"].scores.new_full(prior.full_shape, -1e4)  # whose exponentials are zero
        log_weights[..., self.key] = 0
        site["value"] = log_weights


class _Tilted(Messenger):
    r"""Multiplies the prior of every alignment by :math:`e^{\epsilon_n}`, whatever it depends on; around the guide.

    At :math:`\epsilon = 0` the log evidence has the slope :math:`p(z = n \mid y)`.

    Attributes:
        tilts: Tilt of every site, zeros.
        priors: Prior of every site, without the tilt.
        is_drawn: Whether another latent site was drawn, and not summed out, in the last run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tilts: dict[str, Tensor] = {}
        self.priors: dict[str, AlignmentDistribution] = {}
        self.is_drawn: dict[str, bool] = {}

    def _pyro_sample(self, msg: Message) -> None:
        site = as_site(msg)
        prior = site["infer"].get("prior")
        if isinstance(prior, AlignmentDistribution) and not prior.has_enumerate_support and not site["is_observed"]:
            self._tilt(site, prior, prior.full_shape)  # now: the sum begins when the site is drawn

    def _pyro_post_sample(self, msg: Message) -> None:
        site = as_site(msg)
        if not is_attention_site(site) or "_enumerate_dim" not in site["infer"]:
            if is_latent(msg) and not is_attention_site(site):
                self.is_drawn[site["name"]] = "_enumerate_dim" not in site["infer"]
            return
        prior = site["infer"]["prior"]
        # the keys of alignments that its scores read stand at the left of the plates
        self._tilt(site, prior, prior.full_shape[-2 - depth(msg) :])

    def _tilt(self, site: Site, prior: AlignmentDistribution, shape: torch.Size) -> None:
        tilt = prior.log_weights.new_zeros(shape, requires_grad=True)
        self.tilts[site["name"]], self.priors[site["name"]] = tilt, prior
        site["infer"]["prior"] = prior.tilted(tilt)
