"""Check of widths of a prior that are learned from the data: under most objectives they collapse."""

from __future__ import annotations

from collections.abc import Iterable

from pyro_attention._typing import Message
from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.score_prior import FromPrior

__all__ = ["WidthWarning", "collapsing_widths"]


class WidthWarning(UserWarning):
    """Warning that the width of attention weights is trained under an objective that makes it zero."""


def collapsing_widths(elbo: object, sites: Iterable[Message]) -> str | None:
    r"""Describe the sites whose learned width goes to zero under an objective; None where there are none.

    Weights that are drawn from their prior (:class:`FromPrior`) have no KL, so that a mean over draws of the log
    likelihood, :math:`\mathrm{E}_p[\log f(y \mid W)]`, is largest without any noise. Only the evidence, the log of a
    mean, keeps it.

    Args:
        elbo: The objective; an objective of the evidence has ``is_evidence``.
        sites: Sites of a guide's trace.
    """
    if getattr(elbo, "is_evidence", False):
        return None
    names = []
    for site in sites:
        prior = site["infer"].get("prior")
        is_drawn = isinstance(site["infer"].get("family"), FromPrior) and isinstance(prior, LogWeights)
        if is_drawn and prior.variance.requires_grad:  # Var[log S] depends on the width alone
            names.append(site["name"])
    if not names:
        return None
    return (
        f"FromPrior() at {', '.join(map(repr, names))} with a width that is trained: under {type(elbo).__name__} it "
        f"goes to zero, and the intervals with it; use EvidenceELBO(16) (elbo_for(guide)), or fix the width"
    )
