"""Uncertainty of the network that makes the scores: a Laplace approximation of some of its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

import torch
from pyro.poutine import runtime
from torch import Tensor, nn

from pyro_attention._checks import check_kind, check_positive
from pyro_attention._typing import Args, Model
from pyro_attention.guide import DRAWS
from pyro_attention.posterior.loss_sum import check_sum
from pyro_attention.posterior.passes import seeded

__all__ = ["LaplacePosterior"]

_MOST = {"hessian": 2_000**2, "fisher": 10_000**2}  # most entries of the matrix that is held, in float64


class LaplacePosterior:
    r"""Gaussian posterior of parameters around their trained values: what data have left open about the scores.

    Its width is right only if three things hold, and what can be noticed of them is refused: the loss of a batch is the
    *sum* over its items (with a mean over n items the posterior is up to :math:`\sqrt n` times too wide); under
    ``curvature="fisher"`` a batch is *one item*; and draws are made *one in a pass* (``chunk_size=1``), as the draws of
    one pass share their parameters. The first two are noticed by halves of a batch. So see to them yourself where the
    noise of a loss that draws is large, or where items are not the first dimension of the tensors of a batch.

    .. math:: \theta \sim \mathrm{Normal}\bigl(\hat\theta,\; (H + \sigma^{-2} I)^{-1}\bigr), \qquad
              H = \nabla^2 \sum_i \ell_i(\hat\theta)

    Random attention has the noise of the weights; this is the error of scores that were learned, which shrinks as data
    come in. ``posterior(guide)`` is the guide with another draw of the parameters in every run, and goes wherever a
    guide does, such as :func:`sample_posterior` and :func:`predict`, which then draw from both. ``posterior(model)`` is
    a model of torch.nn or Hugging Face with another draw in every call; ``with posterior:`` has one draw until its
    end.

    ============= ============================================================== ===========================
    ``curvature`` H                                                              numbers held
    ============= ============================================================== ===========================
    "hessian"     exact, of a loss that can be differentiated twice              parameters times parameters
    "fisher"      :math:`\sum_i \nabla\ell_i \nabla\ell_i^\top`, a batch an item  parameters times batches
    ============= ============================================================== ===========================

    A loss that draws, as most ELBOs do, has the draws of one seed. A Hessian that is not positive definite is not that
    of a minimum: directions of negative curvature keep the width of the prior, and a warning counts them. A product of
    matrices, as of queries and keys, does not change along some directions, where a draw of both would leave it: choose
    the parameters of one of them.

    Args:
        module: Holds the parameters: the network, a layer, or the loss where that is a module.
        parameters: Patterns of names in ``module.named_parameters()``, as in ``fnmatch``.
        loss: Negative log likelihood or negative ELBO of a batch, summed over its items, such as
            ``AttentionELBO()(model, guide)``; its gradient has to be its derivative, which doubly reparameterized or
            score-function gradients are not.
        batches: Arguments of the loss in every batch; together they are the training data.
        prior_scale: Standard deviation :math:`\sigma` of every parameter's prior, which is centered at zero.
        curvature: What H is; of at most 2 000 parameters, and 10 000 squared numbers under "fisher", 8 bytes each.

    Raises:
        TypeError: The module is no module, or the loss is no scalar tensor.
        ValueError: A pattern that matches nothing, too many numbers, no batches, a loss that is not finite or does not
            depend on one of the parameters, a mean loss, or one that is scaled to all of the data in each of several
            batches, or several items in a batch under "fisher". At a run of what ``posterior(guide)`` gives: several
            draws in one pass.

    Example:
        >>> net, x, y = nn.Linear(2, 1), torch.randn(50, 2), torch.randn(50)
        >>> posterior = LaplacePosterior(net, "weight", lambda x, y: (net(x)[:, 0] - y).square().sum() / 2, [(x, y)])
        >>> posterior.covariance.shape
        torch.Size([2, 2])
        >>> before = net(x)
        >>> with posterior:
        ...     drawn = net(x)
        >>> bool((drawn != before).any()), bool((net(x) == before).all())
        (True, True)

    Source: MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks; Daxberger et al. (2021),
    Bayesian Deep Learning via Subnetwork Inference.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: str | Sequence[str],
        loss: Callable[..., Tensor],
        batches: Iterable[Args],
        *,
        prior_scale: float = 1.0,
        curvature: Literal["hessian", "fisher"] = "hessian",
    ) -> None:
        check_kind("module", module, nn.Module, "the network")
        check_positive("prior_scale", prior_scale)
        if curvature not in _MOST:
            raise ValueError(f"curvature is '{curvature}', expected 'hessian' or 'fisher'")
        self.prior_scale, self._before = float(prior_scale), list[list[Tensor]]()
        self._chosen = _matching(module, [parameters] if isinstance(parameters, str) else parameters)
        self.mean = _flat([value.detach() for value in self._chosen.values()])
        if curvature == "fisher":
            slopes = _slopes_of_items(loss, batches, self._chosen)
            _, singular, rows = torch.linalg.svd(slopes, full_matrices=False)
            self._curvatures, self._directions = singular.square(), rows.T
        else:
            hessian = _hessian(loss, batches, self._chosen)
            curvatures, self._directions = torch.linalg.eigh((hessian + hessian.T) / 2)
            self._curvatures = _without_negative(curvatures, self.prior_scale)

    @property
    def covariance(self) -> Tensor:
        """Covariance of the parameters ``[P, P]``, one behind the other as ``module.named_parameters()`` has them."""
        narrower = self._deviations.square() - self.prior_scale**2  # what the data take off along each direction
        prior = self.prior_scale**2 * torch.eye(len(self.mean)).to(self.mean)
        return torch.as_tensor(prior + self._directions * narrower @ self._directions.T)

    def sample(self) -> dict[str, Tensor]:
        """Return one draw of the parameters, by their names."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype).to(self.mean.device)
        along = self._directions @ ((self._deviations - self.prior_scale) * (self._directions.T @ noise))
        parts = (self.mean + self.prior_scale * noise + along).split(
            [parameter.numel() for parameter in self._chosen.values()]
        )
        return {
            name: part.view(parameter.shape).to(parameter)
            for (name, parameter), part in zip(self._chosen.items(), parts, strict=True)
        }

    def __enter__(self) -> LaplacePosterior:
        self._before.append([parameter.data for parameter in self._chosen.values()])
        for name, value in self.sample().items():
            self._chosen[name].data = value
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, value in zip(self._chosen.values(), self._before.pop(), strict=True):
            parameter.data = value

    def __call__(self, run: Model) -> Model:
        """Return a guide, or a model, that has another draw of the parameters in every run."""
        return partial(_with_a_draw, self, run)

    @property
    def _deviations(self) -> Tensor:
        """Standard deviation along each of the directions in which the data say something."""
        return torch.as_tensor((self._curvatures + self.prior_scale**-2).rsqrt())


def _with_a_draw(posterior: LaplacePosterior, run: Model, *args: object, **kwargs: object) -> object:
    """Run with one draw of the parameters.

    ``poutine.unwrap`` takes this for a handler around its second argument.
    """
    if any(frame.name == DRAWS for frame in runtime.get_plates()):
        raise ValueError(
            "several draws are made in one pass, and would share one draw of the parameters of a LaplacePosterior; "
            "leave chunk_size out (it is 1 then), or, in an objective with several particles, use the guide itself"
        )
    with posterior:
        return run(*args, **kwargs)


def _matching(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters whose names match a pattern; raise ValueError for no match or no gradient."""
    known = dict(module.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            names = ", ".join(map(repr, list(known)[:20])) or "none"
            raise ValueError(f"parameters: no name matches '{pattern}'; the names in the module are {names}")
    chosen = {name: value for name, value in known.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    frozen = [name for name, value in chosen.items() if not value.requires_grad]
    if frozen or not chosen:
        problem = f"'{frozen[0]}' is frozen" if frozen else "no pattern is given"
        raise ValueError(f"parameters: {problem}, expected trained ones; call requires_grad_(True), or name others")
    return chosen


def _check_size(held: int, size: int, curvature: str) -> None:
    """Raise ValueError before more numbers are held than may be.

    Args:
        held: Numbers that are to be held.
        size: Number of parameters.
        curvature: "hessian" or "fisher".
    """
    if held > _MOST[curvature]:
        other = "curvature='fisher'" if curvature == "hessian" else "fewer batches"
        raise ValueError(
            f"the patterns choose {size} parameters, whose curvature takes {held} numbers ({8 * held / 1e9:.3g} GB), "
            f"expected at most {_MOST[curvature]}; choose fewer, such as W_q of the last layer or LoRA's, or {other}"
        )


def _slopes_of_items(
    loss: Callable[..., Tensor], batches: Iterable[Args], chosen: Mapping[str, nn.Parameter]
) -> Tensor:
    """Return the gradient of every batch, which is an item, ``[batches, P]``."""
    slopes, size = list[Tensor](), _count(chosen)
    with seeded(0), torch.enable_grad():
        for batch in _checked_batches(loss, batches, one_item=True):
            _check_size(size * (1 + len(slopes)), size, "fisher")
            slopes.append(_slope(loss, batch, chosen, twice=False))
    return torch.stack(slopes)


def _hessian(loss: Callable[..., Tensor], batches: Iterable[Args], chosen: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the second derivatives of the sum of the losses of all batches, ``[P, P]``."""
    total, size = None, _count(chosen)
    with seeded(0), torch.enable_grad():
        for batch in _checked_batches(loss, batches, one_item=False):
            _check_size(size * size, size, "hessian")
            of_batch = _jacobian(_slope(loss, batch, chosen, twice=True), list(chosen.values()))
            total = of_batch if total is None else of_batch + total
    assert total is not None  # no batches are an error
    return total


def _checked_batches(loss: Callable[..., Tensor], batches: Iterable[Args], *, one_item: bool) -> Iterator[Args]:
    """Yield the batches; raise ValueError where there are none, or the loss of the first two is no sum over items."""
    count = 0
    for count, batch in enumerate(batches, start=1):
        if count <= 2:  # only of several batches is it wrong to scale each of them to all of the data
            check_sum(loss, batch, one_item=one_item, only=count == 1)
        yield batch
    if not count:
        raise ValueError("batches are empty, expected the arguments of the loss for the training data")


def _count(parameters: Mapping[str, nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())


def _slope(loss: Callable[..., Tensor], batch: Args, chosen: Mapping[str, Tensor], *, twice: bool) -> Tensor:
    """Return the gradient of a batch's loss ``[P]``, with a graph of its own if it is needed ``twice``."""
    value = loss(*batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        actual = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the loss gave {actual}, expected one number, the sum over the items of a batch")
    if not value.isfinite():
        raise ValueError(f"the loss is {value.item()} at the trained parameters; look for NaN in the data")
    if not value.requires_grad:
        raise ValueError(
            "the loss depends on no parameter that requires a gradient, so on none of the chosen ones; compute it from "
            "the module, without .detach(), .item(), no_grad() or a copy of the parameters"
        )
    slopes = torch.autograd.grad(value, list(chosen.values()), create_graph=twice, allow_unused=True)
    for name, slope in zip(chosen, slopes, strict=True):
        if slope is None:
            raise ValueError(f"the loss does not depend on '{name}'; leave it out of the patterns")
    return _flat(slopes)


def _jacobian(slope: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return the second derivatives ``[P, P]``, a row for each parameter."""
    if not slope.requires_grad:
        return torch.zeros(len(slope), len(slope)).to(slope)
    gradient = partial(torch.autograd.grad, inputs=values, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.stack([_flat(gradient(entry)) for entry in slope])


def _without_negative(curvatures: Tensor, prior_scale: float) -> Tensor:
    """Replace negative curvatures by zero; warn where that changes a width by more than rounding does."""
    negative = curvatures < -0.01 * prior_scale**-2 - 1e-6 * curvatures.max()
    if negative.any():
        warnings.warn(
            f"the Hessian is not positive definite: {int(negative.sum())} of {len(curvatures)} directions curve "
            f"downwards, the most by {curvatures.min():.3g}, the steepest upwards by {curvatures.max():.3g}; they have "
            f"the width of the prior now; train for longer, draw more particles, or take curvature='fisher'",
            stacklevel=3,
        )
    return curvatures.clamp(min=0)


def _flat(values: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in values]).double()
