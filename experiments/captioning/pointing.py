"""Whether attention is where things are: digits in the cells of a scene, things in the maps of a photograph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.datasets.images.digit_scenes import DIGIT_NAMES, NO_CELL
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.datasets.images.segmentation import SegmentationMaps
from experiments.datasets.text.batches import Batch
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.sequence.alignments import BatchAlignment, align_batch
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import merge_pieces

__all__ = ["DEFINITIONS", "NOUNS", "MapPointing", "middle", "pointing"]

_WORDS = "over the names of digits in the captions of the beam search; a digit that is not there counts as missed"

_DIGITS = {
    "test_pointing": f"share of words whose largest mean posterior weight is on the word's own cell, {_WORDS}",
    "test_pointing_mass": f"mean posterior weight on the word's own cell, {_WORDS}",
    "test_pointing_samples": f"as test_pointing, mean over posterior samples of the weights, {_WORDS}",
    "test_pointing_prior": f"as test_pointing, of the prior's mean weights, {_WORDS}",
    "test_pointing_prior_mass": f"as test_pointing_mass, of the prior's mean weights, {_WORDS}",
}

_LEAST = 0.01  # of a photograph's area that a class has; smaller ones are not counted

NOUNS = {
    "person": "person people man men woman women boy boys girl girls child children kid kids baby babies toddler lady "
    "ladies guy guys player players",
    "dog": "dog dogs puppy puppies",
    "horse": "horse horses pony",
    "bicycle": "bicycle bicycles bike bikes",
    "motorbike": "motorbike motorbikes motorcycle motorcycles",
    "car": "car cars",
    "boat": "boat boats canoe kayak",
    "bird": "bird birds",
}
"""Words for the classes of Pascal VOC that Flickr8k's test photographs have."""
_CLASS_OF = {word: name for name, words in NOUNS.items() for word in words.split()}

_OVER = (
    f"mean over the nouns of the first captions of the test photographs whose class has {_LEAST:.0%} of the "
    "photograph's area or more, in the segmentation maps"
)
_WEIGHTS = {
    "": "mean posterior weights",
    "_prior": "prior's mean weights",
    "_uniform": "weights that are the same for all regions",
    "_centre": "weights on the regions in the middle alone",
}
_MAPS = {
    f"test_map_mass{end}": f"share of the {whose} on a noun's class, each region's spread evenly over its area, {_OVER}"
    for end, whose in _WEIGHTS.items()
} | {
    f"test_map_point{end}": f"share of the area of the region with the largest of the {_WEIGHTS[end]} that belongs to "
    f"the noun's class, {_OVER}"
    for end in ("", "_prior")
}  # fmt: skip
_MAPS |= {
    f"{name}_{kind}": f"{text}; {kind} alone"
    for name, text in _MAPS.items() if "mass" in name
    for kind in NOUNS
} | {f"test_map_nouns_{kind}": f"number of nouns for the class {kind} that were counted" for kind in NOUNS}  # fmt: skip

DEFINITIONS = _DIGITS | _MAPS


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


def middle(grid: tuple[int, int]) -> Tensor:
    """Weights on the cells of a grid that are nearest to its middle, ``[cells]``.

    Example:
        >>> middle((1, 4)), middle((1, 3))
        (tensor([0.0000, 0.5000, 0.5000, 0.0000]), tensor([0., 1., 0.]))
    """
    rows, columns = ((torch.arange(side) - (side - 1) / 2).abs() < 1 for side in grid)
    cells = (rows[:, None] & columns).float().flatten()
    return cells / cells.sum()


class MapPointing:
    """Counts where the attention of nouns is, batch by batch.

    The nouns are those of given captions, the same for every network.

    Args:
        maps: Which class is where; photographs that are not among them are not counted.
        data: The photographs.
        pairs: Their captions.
        vocabulary: Word pieces.
    """

    def __init__(
        self, maps: SegmentationMaps, data: RegionCaptions, pairs: EncodedCaptions, vocabulary: Vocabulary
    ) -> None:
        self.maps, self.data, self.pairs, self.vocabulary = maps, data, pairs, vocabulary
        self.found = defaultdict[str, list[float]](list)
        self.baselines = {"_uniform": torch.full((data.regions.size(1),), 1 / data.regions.size(1)),
                          "_centre": middle(data.grid)}  # fmt: skip

    def add(self, batch: Batch, found: BatchAlignment) -> None:
        """Count the nouns of a batch."""
        weights = {"": found.posterior.mean(0).cpu()} | ({} if found.prior is None else {"_prior": found.prior.cpu()})
        for row, pair in enumerate(batch.indices.tolist()):
            nouns = self.nouns(pair)
            if not nouns:
                continue
            length = int(batch.target_mask[row].sum())
            words = self.vocabulary.words(batch.target_out[row, :length].tolist())
            regions = list(range(self.data.regions.size(1)))
            merged = {
                end: merge_pieces(values[row, :length], source=regions, target=words) for end, values in weights.items()
            }
            for place, name, shares in nouns:
                self.found[f"nouns_{name}"].append(1.0)
                for end, values in merged.items():
                    self._add(f"mass{end}", name, float(values[place] @ shares))
                    self.found[f"point{end}"].append(float(shares[values[place].argmax()]))
                for end, baseline in self.baselines.items():
                    self._add(f"mass{end}", name, float(baseline @ shares))

    def nouns(self, pair: int) -> Sequence[tuple[int, str, Tensor]]:
        """Place of the nouns in a caption, their classes, and the share of every region that the class has."""
        image = self.pairs.image[pair]
        name = self.data.files[image].name
        if name not in self.maps.places:
            return []
        shares = self.maps.shares(name, self.data.grid)
        caption = self.data.captions[image][pair - self.pairs.firsts[image]]
        classes = [(place, _CLASS_OF.get(word)) for place, word in enumerate(caption.split())]
        found = [(place, name, shares[self.maps.classes.index(name)]) for place, name in classes
                 if name in self.maps.classes and name is not None]  # fmt: skip
        return [(place, name, share) for place, name, share in found if share.mean() >= _LEAST]

    def _add(self, score: str, name: str, value: float) -> None:
        self.found[score].append(value)
        self.found[f"{score}_{name}"].append(value)

    @property
    def metrics(self) -> dict[str, float]:
        """Those of ``DEFINITIONS`` that there are nouns for."""
        return {
            f"test_map_{name}": float(len(values)) if name.startswith("nouns_") else sum(values) / len(values)
            for name, values in self.found.items()
        }
