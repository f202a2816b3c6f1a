"""Whether attention points at the right cell when the name of a digit is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.datasets.images.digit_scenes import DIGIT_NAMES, NO_CELL
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.sequence.alignments import align_batch
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import merge_pieces

__all__ = ["DEFINITIONS", "pointing"]

_WORDS = "over the names of digits in the captions of the beam search; a digit that is not there counts as missed"

DEFINITIONS = {
    "test_pointing": f"share of words whose largest mean posterior weight is on the word's own cell, {_WORDS}",
    "test_pointing_mass": f"mean posterior weight on the word's own cell, {_WORDS}",
    "test_pointing_samples": f"as test_pointing, mean over posterior samples of the weights, {_WORDS}",
    "test_pointing_prior": f"as test_pointing, of the prior's mean weights, {_WORDS}",
    "test_pointing_prior_mass": f"as test_pointing_mass, of the prior's mean weights, {_WORDS}",
}


def pointing(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, float]:
    """Pointing accuracy of prior, posterior mean and posterior samples, for captions that the network has made.

    Nothing about a prior that is the same for all cells, nothing without a digit's name, nothing of photographs.
    """
    if data.scenes is None:
        return {}
    pairs = EncodedCaptions(data.with_captions(captions), trained.vocabulary)
    scores = defaultdict[str, list[Tensor]](list)
    for places in torch.arange(len(pairs)).split(BATCH):
        batch = pairs[places.tolist()].to(trained.device)
        found = align_batch(trained, batch, num_samples=trained.config.num_samples)
        for row, image in enumerate(places.tolist()):
            names = captions[image].split()
            spoken = [place for place, name in enumerate(names) if name in DIGIT_NAMES]
            if not spoken:
                continue
            cells = torch.tensor(data.scenes.word_cells(image, captions[image]))[spoken]
            length = int(batch.target_mask[row].sum())
            words = trained.vocabulary.words(batch.target_out[row, :length].tolist())

            def of_words(weights: Tensor, words: Sequence[int | None] = words, spoken: list[int] = spoken) -> Tensor:
                cut = weights[..., : len(words), :].cpu()
                return merge_pieces(cut, source=list(range(cut.size(-1))), target=words)[..., spoken, :]

            samples = of_words(found.posterior[:, row])
            _add(scores, "test_pointing", samples.mean(0), cells)
            scores["test_pointing_samples"].append((samples.argmax(-1) == cells).float().mean(0))
            if found.prior is not None:
                _add(scores, "test_pointing_prior", of_words(found.prior[row]), cells)
    return {name: torch.cat(values).mean().item() for name, values in scores.items()}


def _add(scores: dict[str, list[Tensor]], name: str, weights: Tensor, cells: Tensor) -> None:
    mass = weights.gather(-1, cells.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    scores[f"{name}_mass"].append(mass.where(cells != NO_CELL, 0))
    scores[name].append((weights.argmax(-1) == cells).float())
