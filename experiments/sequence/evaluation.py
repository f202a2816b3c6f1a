"""What the evaluation of networks that write sentences has in common: the search, and what metrics mean."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.harness.training import FITTED
from experiments.sequence import learned
from experiments.sequence.model import AnyTrained
from models.decoding import Hypothesis, beam_search

BATCH = 50  # sentences at a time, in evaluation

DEFINITIONS = {
    "test_entropy": "entropy in nats of the mean weights that predict a word piece (prior of an alignment, posterior "
    "mean of Bayesian attention), mean over word pieces",
    "test_posterior_entropy": "entropy in nats of the mean posterior weights, mean over word pieces",
    "test_posterior_gap": "KL in nats from the posterior of an inference network to the exact one, mean over word "
    "pieces: so far is the bound that is trained below the log evidence",
    "test_support": "number of keys with a positive probability in a sparse alignment (in the prior of "
    "sparse_marginal, in the posterior of sparse_enum), mean over word pieces",
    **learned.DEFINITIONS,
    **FITTED,
}


def search(trained: AnyTrained, source: Tensor, mask: Tensor, **options: Any) -> list[Hypothesis]:
    """The best sentence for each source by beam search, with the network's options unless told otherwise."""
    config = trained.config
    given = {"beam": config.beam, "no_repeat": config.no_repeat, "length_penalty": config.length_penalty}
    options = given | {"inference": trained.inference()} | options
    found = beam_search(trained.model, source, mask, begin=BEGIN, end=END, alignments=False, **options)
    return [best for best, *_ in found]
