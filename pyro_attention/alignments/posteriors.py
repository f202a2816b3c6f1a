"""Posterior families of alignments: summed out, enumerated, drawn, sparse or relaxed."""

from __future__ import annotations

from typing import ClassVar

from pyro_attention._checks import check_positive
from pyro_attention.alignments.base import AlignmentDistribution, AlignmentWeights
from pyro_attention.alignments.relaxed import RelaxedAlignment
from pyro_attention.alignments.sparse import SparseAlignment
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.ops.sparsemax import check_most_keys

__all__ = ["Categorical", "GumbelSoftmax", "Marginal", "SparseCategorical"]


@FAMILIES.register("marginal")
class Marginal(Family):
    r"""No posterior: the alignment is summed out exactly, :math:`\log \sum_z p(z)\, f(y \mid z)`.

    For :class:`AlignmentELBO`, whose value then is the log evidence; elsewhere it draws from the prior.

    Example:
        >>> Marginal().infer
        {'enumerate': 'parallel'}

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """

    kind = AlignmentDistribution.kind
    is_marginal = True
    infer: ClassVar[dict[str, str]] = {"enumerate": "parallel"}

    def posterior(self, call: AttentionCall, prior: AlignmentDistribution) -> AlignmentDistribution:  # noqa: ARG002
        return prior


@FAMILIES.register("categorical")
class Categorical(Family):
    r"""Categorical posterior, summed out exactly: :math:`\mathrm{E}_q[\log f(y \mid z)] - \mathrm{KL}(q \| p)`.

    By itself q is the prior ("hard attention", whose KL is zero); with :class:`Amortized` its scores come from an
    inference network.

    Args:
        enumerate: Sum over all keys; False draws one, for estimators of its gradient.

    Example:
        >>> Categorical()
        Categorical(enumerate=True)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.1.
    """

    kind = AlignmentDistribution.kind

    def __init__(self, *, enumerate: bool = True) -> None:
        super().__init__()
        self.enumerate = enumerate
        self.infer = {"enumerate": "parallel"} if enumerate else {}  # type: ignore[misc]

    def posterior(self, call: AttentionCall, prior: AlignmentDistribution) -> AlignmentDistribution:
        return prior.at_scores(call.scores)

    def extra_repr(self) -> str:
        return f"enumerate={self.enumerate}"


@FAMILIES.register("sparse_categorical")
class SparseCategorical(Family):
    r"""Categorical posterior with few keys, summed out exactly: :math:`q = \mathrm{sparsemax}(\Phi)`.

    .. math:: \sum_{z:\, q(z) > 0} q(z)\, \bigl(\log f(y \mid z) + \log p(z) - \log q(z)\bigr)

    is the ELBO: the likelihood is wanted at the keys of q alone. As in the paper the prior may be dense, as that of
    :class:`AlignmentPrior` is; then every such bound is finite, and tight only where the exact posterior is sparse
    too. Under a sparse prior q has no other keys than the prior.

    By itself q has the prior's scores; with :class:`Amortized` they come from an inference network.

    Args:
        k: Most keys of a query (top-k sparsemax), at least 1; None for as many as sparsemax has. The ELBO stays a bound
            where k cuts; ``AlignmentELBO.cut_record`` says how often it does.

    Raises:
        ValueError: k is below 1.

    Example:
        >>> import torch
        >>> from pyro_attention import AlignmentPrior, Dense
        >>> call = AttentionCall(scores=torch.zeros(1, 1, 4), layout=Dense(event_dim=2))
        >>> SparseCategorical(k=2).posterior(call, AlignmentPrior()(call)).support_size
        tensor([2])

    Source: Correia et al. (2020), Efficient Marginalization of Discrete and Structured Latent Variables via Sparsity,
    section 3.
    """

    kind = AlignmentDistribution.kind

    def __init__(self, *, k: int | None = None) -> None:
        super().__init__()
        check_most_keys(k)
        self.k = k
        self.infer = {"enumerate": "parallel"}  # type: ignore[misc]

    def posterior(self, call: AttentionCall, prior: AlignmentDistribution) -> SparseAlignment:
        return SparseAlignment(call.scores, layout=prior.possible_layout, k=self.k)

    def extra_repr(self) -> str:
        return f"k={self.k}"


@FAMILIES.register("gumbel_softmax")
class GumbelSoftmax(Family):
    r"""Relaxed draws of a categorical posterior, for :class:`AttentionELBO`; the KL is the categorical one, exact.

    .. math:: \mathrm{E}[\log f(y \mid \mathrm{softmax}((\log q + G) / \tau))] - \mathrm{KL}(q \| p)

    Its gradient is estimated without bias, but this is no bound on the evidence; it tends to that of
    :class:`Categorical` as the temperature falls, while the variance of its gradient grows.

    By itself q is the prior; with :class:`Amortized` its scores come from an inference network.

    Args:
        temperature: ``tau > 0``, else ValueError.

    Example:
        >>> GumbelSoftmax()
        GumbelSoftmax(temperature=0.1)

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution; Deng et al. (2018), Latent Alignment and Variational Attention, for alignments.
    """

    kind = AlignmentDistribution.kind

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        self.temperature = temperature

    def prior(self, prior: AlignmentDistribution) -> AlignmentWeights:
        return prior.over_weights

    def posterior(self, call: AttentionCall, prior: AlignmentDistribution) -> RelaxedAlignment:
        alignment = prior.at_scores(call.scores)
        return RelaxedAlignment(alignment, temperature=self.temperature).expand(prior.batch_shape)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
