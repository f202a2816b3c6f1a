"""Deep ensembles: the mean prediction of runs that differ in their seed, from what they left in their folders."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from experiments.datasets.safe_arrays import read_arrays
from experiments.files import UserError, user_errors
from experiments.graph.config import GraphConfig
from experiments.graph.data import load_data
from experiments.graph.evaluation import prediction_scores
from experiments.graph.model import run_folder

__all__ = ["graph_ensemble"]

_AGAIN = "run this configuration again with --overwrite"


def graph_ensemble(configs: Sequence[GraphConfig]) -> dict[str, float]:
    """Scores of the mean class probabilities of finished runs on the same graph.

    The members are taken at their posterior mean; one temperature is fitted for the mixture on the validation nodes.

    Raises:
        UserError: A run has left no predictions.

    Source: Lakshminarayanan et al. (2017), Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles.
    """
    members = []
    for config in configs:
        path = run_folder(config) / "predictions.npz"
        if not path.is_file():
            raise UserError(f"{path} is missing; {_AGAIN}")
        with user_errors(ValueError):
            arrays = read_arrays(path, remedy=_AGAIN)
        if "logits" not in arrays:
            raise UserError(f"{path} has no array logits; {_AGAIN}")
        members.append(torch.from_numpy(arrays["logits"]))
    return prediction_scores("mean", torch.stack(members), load_data(configs[0]))
