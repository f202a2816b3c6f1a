"""Choice of the objective that goes with a guide."""

from __future__ import annotations

from typing import Any

from pyro_attention.alignments.enumeration import AlignmentELBO
from pyro_attention.alignments.posteriors import Categorical
from pyro_attention.families.amortized import Amortized
from pyro_attention.families.base import Family
from pyro_attention.families.score_prior import FromPrior
from pyro_attention.guide import AttentionGuide, check_guide
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.evidence import EvidenceELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO

__all__ = ["elbo_for"]


def elbo_for(guide: AttentionGuide | Family, **options: Any) -> AttentionELBO | AlignmentELBO:
    """Return the objective that goes with the families of a guide.

    ===================================== =========================
    a family                              objective
    ===================================== =========================
    that sums alignments out              :class:`AlignmentELBO`
    that draws keys                       :class:`ScoreFunctionELBO`
    :class:`FromPrior`                    :class:`EvidenceELBO`, under which a width can be learned
    any other                             :class:`AttentionELBO`
    ===================================== =========================

    Args:
        guide: The guide, with or without handlers around it, or the one family that it has.
        options: Options of the objective, such as ``max_plate_nesting``.

    Raises:
        ValueError: One family sums alignments out and another draws keys, which no objective does at a time.

    Example:
        >>> from pyro_attention import FromPrior, Marginal, Weibull
        >>> [type(elbo_for(family)).__name__ for family in (Weibull(), Marginal(), FromPrior())]
        ['AttentionELBO', 'AlignmentELBO', 'EvidenceELBO']
    """
    families = [guide] if isinstance(guide, Family) else list(check_guide(guide).attention_families)
    families = [family.family if isinstance(family, Amortized) else family for family in families]
    summed = [family for family in families if "enumerate" in family.infer]
    drawn = [family for family in families if isinstance(family, Categorical) and not family.enumerate]
    if summed and drawn:
        raise ValueError(
            f"the guide sums alignments out ({summed[0]}) and draws them ({drawn[0]}), expected one of both; sum all "
            f"out, or draw all by Categorical(enumerate=False)"
        )
    if summed:
        return AlignmentELBO(**options)
    if drawn:
        return ScoreFunctionELBO(**options)
    if any(isinstance(family, FromPrior) for family in families):
        return EvidenceELBO(**options)
    return AttentionELBO(**options)
