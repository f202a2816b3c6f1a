"""How the attention of the next word is integrated out."""

from __future__ import annotations

from dataclasses import dataclass

from models.decoder import AttentionDecoder
from pyro_attention import AlignmentPrior, Amortised, Soft
from pyro_attention.families.base import Family

__all__ = ["DEFAULT", "Inference"]


@dataclass(frozen=True, kw_only=True)
class Inference:
    r"""How the attention is integrated out of :math:`p(y_j \mid x, y_{<j})`.

    ====================== ============================= ============================================
    prior of the attention family and samples            value
    ====================== ============================= ============================================
    ``AlignmentPrior``     any but ``Soft``              exact: log of the sum over z of p(z) f(y|z)
    ``AlignmentPrior``     ``Soft()``                    soft attention, log f(y|E[z])
    Gamma, LogNormal       any, ``samples=0``            posterior mean of log S: log f(y|softmax(scores))
    Gamma, LogNormal       Weibull..., ``samples=S``     log of the mean of f(y|w) over S posterior draws of w
    ====================== ============================= ============================================

    The first row takes an inference network's guide too: a network that sees the word is of no use before there is
    one, and the prior is the model's own distribution of the alignment.

    Attributes:
        k_max: Renormalise so many largest attention weights and drop the others; of each draw, where there are
            draws. Exact sums then take only so many terms. The input feed of the decoder follows.
        terms: Where alignments are summed out, sum over so many most probable ones of each word alone, renormalised:
            for a search, which looks at all words of the vocabulary for each alignment. The input feed, and the
            alignment of a word that was chosen, are those of all.
        family: Posterior family of the attention, ``guide.family("alignment")`` of an ``AttentionGuide``.
        samples: Number of posterior draws, from torch's global generator.

    Raises:
        TypeError: The family is no Family.
        ValueError: ``k_max`` or ``terms`` below 1, or fewer than 0 samples.

    Example:
        >>> from pyro_attention import Weibull
        >>> Inference(family=Weibull(), samples=20).samples
        20

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5; Fan et al. (2020), Bayesian
    Attention Modules, section 3.1, for averages over posterior draws.
    """

    k_max: int | None = None
    terms: int | None = None
    family: Family | None = None
    samples: int = 0

    def __post_init__(self) -> None:
        for name, value, all_of in (("k_max", self.k_max, "weights"), ("terms", self.terms, "alignments")):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}, expected an integer of at least 1, or None for all {all_of}")
        if not isinstance(self.samples, int) or self.samples < 0:
            raise ValueError(f"samples is {self.samples!r}, expected an integer of at least 0")
        if self.family is not None and not isinstance(self.family, Family):
            raise TypeError(f"family is {self.family!r}, expected a Family such as Weibull(concentration=10.0)")

    def check(self, model: AttentionDecoder) -> None:
        """Raise ValueError unless family and samples fit the model's prior."""
        aligned, family = isinstance(model.attention.prior, AlignmentPrior), self.family
        if family is not None and family.kind not in (None, model.attention.prior.kind):
            kind, prior = family.kind, type(model.attention.prior).__name__
            raise ValueError(f"family is {family}, of kind '{kind}', which does not fit the model's prior {prior}")
        if self.samples == 0:
            return
        if aligned:
            raise ValueError(f"samples is {self.samples}, expected 0: the sum over alignments is exact")
        if family is None or isinstance(family, Amortised):
            raise ValueError(
                f"samples is {self.samples} and family is {family}, expected a family to draw from, such as Weibull(); "
                f"an inference network sees the words to come, and serves with samples=0"
            )

    def sums_out(self, model: AttentionDecoder) -> bool:
        """Whether alignments are summed out; else weights make one context."""
        family = self.family.family if isinstance(self.family, Amortised) else self.family
        return isinstance(model.attention.prior, AlignmentPrior) and not isinstance(family, Soft)


DEFAULT = Inference()
