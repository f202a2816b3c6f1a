"""Columns and legends of a comparison of inference schemes on translation."""

from __future__ import annotations

from experiments.reporting.columns import Column

__all__ = ["COLUMNS", "LEGEND", "NORMALIZERS"]

COLUMNS = (
    Column("perplexity", "test_ppl"),
    Column("K-max ppl", "test_ppl_k_max"),
    Column("BLEU", "test_bleu", 1),
    Column("K-max BLEU", "test_bleu_k_max", 1),
    Column("AER prior %", "test_prior_aer", 1, 100),
    Column("AER posterior %", "test_posterior_aer", 1, 100),
    Column("entropy", "test_entropy"),
    Column("temporal share", "temporal_share", 2),
    Column("ms/step", "step_ms", 0),
    Column("parameters", "parameters", 0, spread=False),
)
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
