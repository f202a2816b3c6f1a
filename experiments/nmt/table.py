"""Rows of a comparison of inference schemes on translation."""

from __future__ import annotations

from experiments.reporting.scheme_table import Runs, scheme_rows

__all__ = ["LEGEND", "NORMALIZERS", "table_rows"]

COLUMNS = {
    "perplexity": ("test_ppl", 3, 1),
    "K-max ppl": ("test_ppl_k_max", 3, 1),
    "BLEU": ("test_bleu", 1, 1),
    "K-max BLEU": ("test_bleu_k_max", 1, 1),
    "AER prior %": ("test_prior_aer", 1, 100),
    "AER posterior %": ("test_posterior_aer", 1, 100),
    "entropy": ("test_entropy", 3, 1),
    "temporal share": ("temporal_share", 2, 1),
    "ms/step": ("step_ms", 0, 1),
    "parameters": ("parameters", 0, 1),
}
LEGEND = (
    "Perplexity: alignments summed out exactly; weibull and lognormal: predictive, over samples of q(W | x, prefix); "
    "dirichlet: over samples of its prior. AER: alignment error rate against the gold links, of the prior p(z | x, "
    "y_<j), which does not see the word, and of the posterior, which does: that of the inference network "
    "(categorical, dirichlet), else exact (marginal, hard); the attention weights of soft, weibull and lognormal are "
    "all they have. Entropy of the mean weights that predict, in nats."
)
NORMALIZERS = (
    "Rows temporal: weights normalised over the words before, then over the source. Double normalisation sums over the "
    "words to come as well, which a decoder does not have yet; this is the rest of it. Rows hybrid: a trained mixture "
    "of that, with the share shown, and the softmax."
)


def table_rows(runs: Runs) -> list[dict[str, str]]:
    """One row a scheme: mean +- standard deviation over seeds; columns that no scheme has are left out."""
    return scheme_rows(runs, COLUMNS)
