"""Whether the uncertainty of a model tells sentences of other tasks from those of its own."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.datasets.text.glue import GLUE, LabelledPairs, load_glue
from experiments.files import UserError
from experiments.finetune.config import GlueConfig, GlueName
from pyro_attention.analysis import decompose_uncertainty

__all__ = ["MEASURES", "auroc_scores", "definition", "foreign_parts"]

MEASURES = {"entropy": "entropy of the mean probabilities", "mutual_information": "mutual information"}


def foreign_parts(config: GlueConfig) -> dict[str, LabelledPairs]:
    """Test examples of the tasks that are out of domain; of a pair only the first sentence where the task has none.

    Raises:
        UserError: The task has grades, or pairs where the other one has none.
        ValueError, FileNotFoundError: As :func:`load_glue`.
    """
    own, parts = GLUE[config.task], dict[str, LabelledPairs]()
    if config.out_of_domain and own.regression:
        raise UserError(f"out_of_domain is set for {config.task}, expected a task with classes")
    for name in config.out_of_domain:
        text = load_glue(name, data_root=config.data_root)["test"]
        pairs = own.layout.second is not None
        if pairs and text.second is None:
            raise UserError(f"out_of_domain is {name}, which has no pairs of sentences as {config.task} has")
        if name == config.task:
            raise UserError(f"out_of_domain is {name}, expected other tasks than the one that is trained on")
        parts[name] = LabelledPairs(text.first, text.second if pairs else None, torch.zeros_like(text.labels).long())
    return parts


def auroc_scores(own: Tensor, foreign: Tensor) -> dict[str, float]:
    """Area under the ROC curve of telling foreign examples by their larger uncertainty; 0.5 is chance.

    Args:
        own: Logits ``[S, items, classes]``.
        foreign: Logits of the others.
    """
    parts = [decompose_uncertainty(logits.softmax(-1)) for logits in (own, foreign)]
    truth = np.repeat([0, 1], [own.size(1), foreign.size(1)])
    measures = {"entropy": "total"} | ({"mutual_information": "mutual_information"} if len(own) > 1 else {})
    return {
        name: float(roc_auc_score(truth, torch.cat([getattr(part, attribute) for part in parts]).numpy()))
        for name, attribute in measures.items()
    }


def definition(name: GlueName, measure: str) -> str:
    """What such an area means."""
    return (
        f"area under the ROC curve of telling test sentences of {GLUE[name].title} from those of this task by the "
        f"larger {MEASURES[measure]}"
    )
