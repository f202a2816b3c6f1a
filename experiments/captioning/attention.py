"""Location of the attention of a captioning network: entropies, pointing at digits, and mass on segmentation maps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor

from experiments.captioning.batches import batches, captioned_batches
from experiments.data.images.digit_scenes import DIGIT_NAMES, NO_CELL, word_cells
from experiments.data.images.region_captions import EncodedCaptions, RegionCaptions, SegmentationMaps
from experiments.data.text.batches import Batch, Vocabulary
from experiments.sequence.alignments import BatchAlignment, EntropySums, align_batch, has_posterior_gap
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import merge_pieces

_LEAST_AREA = 0.01  # share of a photograph's area below which a class is not counted
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
"""Nouns for the classes of Pascal VOC that Flickr8k's test photographs have."""
_CLASS_OF = {word: name for name, words in NOUNS.items() for word in words.split()}


def word_weights(weights: Tensor, batch: Batch, row: int, vocabulary: Vocabulary) -> Tensor:
    """Return the weights ``[..., words, N]`` of one sentence from those of the word pieces ``[..., B, M, N]``."""
    length = int(batch.target_mask[row].sum())
    words = vocabulary.words(batch.target_out[row, :length].tolist())
    return merge_pieces(weights[..., row, :length, :].cpu(), source=list(range(weights.size(-1))), target=words)


def attention_metrics(
    trained: AnyTrained, test: RegionCaptions, maps: SegmentationMaps | None, references: int
) -> dict[str, float]:
    """Compute entropies of the attention, and with segmentation maps its mass on the things that nouns name.

    Args:
        trained: The network.
        test: Images with captions.
        maps: Segmentation maps of the photographs, if there are any.
        references: Number of captions of each image, the first ones.
    """
    entropies, values = EntropySums(), defaultdict[str, list[float]](list)
    pairs = EncodedCaptions(test, trained.vocabulary, references=references)
    for batch in batches(trained, test, references=references):
        alignment = align_batch(
            trained, batch, num_samples=trained.config.num_samples, exact=has_posterior_gap(trained)
        )
        entropies.add(trained, batch, alignment)
        if maps is not None:
            for name, value in map_scores(maps, test, pairs, trained.vocabulary, batch, alignment):
                values[name].append(value)
    counts = {name: float(len(numbers)) for name, numbers in values.items() if "_nouns_" in name}
    return entropies.metrics | {name: fmean(numbers) for name, numbers in values.items()} | counts


def pointing(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, float]:
    """Compute how often the largest weight of a digit's name is on the cell of the digit, and the weight there.

    Prior, posterior mean and posterior samples are scored. A prior that is the same for all cells is not scored, and
    captions without a digit's name are skipped.

    Args:
        trained: The network.
        data: Digit scenes.
        captions: A caption of each scene, such as one that the network wrote.

    Raises:
        ValueError: The images are no digit scenes.
    """
    if data.digits is None:
        raise ValueError(f"the images of {data.name} are no scenes, expected some whose digits have known cells")
    scores = defaultdict[str, list[Tensor]](list)
    for batch in captioned_batches(trained, data, captions):
        alignment = align_batch(trained, batch, num_samples=trained.config.num_samples)
        for row, image in enumerate(batch.indices.tolist()):
            digit_words = [index for index, word in enumerate(captions[image].split()) if word in DIGIT_NAMES]
            if not digit_words:
                continue
            cells = torch.tensor(word_cells(data.digits[image], captions[image]))[digit_words]
            samples = word_weights(alignment.posterior, batch, row, trained.vocabulary)[:, digit_words]
            scores["test_pointing_samples"].append((samples.argmax(-1) == cells).float().mean(0))
            means = {"test_pointing": samples.mean(0)}
            if alignment.prior is not None:
                prior = word_weights(alignment.prior, batch, row, trained.vocabulary)
                means["test_pointing_prior"] = prior[digit_words]
            for name, weights in means.items():
                mass = weights.gather(-1, cells.clamp(min=0).unsqueeze(-1)).squeeze(-1)
                scores[f"{name}_mass"].append(mass.where(cells != NO_CELL, 0))
                scores[name].append((weights.argmax(-1) == cells).float())
    return {name: torch.cat(values).mean().item() for name, values in scores.items()}


def center_weights(grid: tuple[int, int]) -> Tensor:
    """Return equal weights on the cells nearest to the center of a grid, one or two in each direction, ``[cells]``."""
    rows, columns = ((torch.arange(side) - (side - 1) / 2).abs() < 1 for side in grid)
    cells = (rows[:, None] & columns).float().flatten()
    return cells / cells.sum()


def map_scores(
    maps: SegmentationMaps,
    data: RegionCaptions,
    pairs: EncodedCaptions,
    vocabulary: Vocabulary,
    batch: Batch,
    alignment: BatchAlignment,
) -> Iterator[tuple[str, float]]:
    """Yield names and values of the metrics ``test_map_*`` of every noun in a batch of photographs with captions.

    Args:
        maps: Segmentation maps of the photographs.
        data: The photographs.
        pairs: Pairs of photograph and caption, which the batch is taken from.
        vocabulary: Word pieces.
        batch: Some of the pairs.
        alignment: Weights of the word pieces of the batch.
    """
    means = {"": alignment.posterior.mean(0)}
    if alignment.prior is not None:
        means["_prior"] = alignment.prior
    for row, pair in enumerate(batch.indices.tolist()):
        image = pairs.image[pair]
        nouns = list(_nouns(maps, data, image, data.captions[image][pair - pairs.firsts[image]]))
        if not nouns:
            continue
        of_words = {suffix: word_weights(weights, batch, row, vocabulary) for suffix, weights in means.items()}
        for index, class_name, shares in nouns:
            yield f"test_map_nouns_{class_name}", 1.0
            weights = {suffix: values[index] for suffix, values in of_words.items()}
            for suffix, of_noun in weights.items():
                yield f"test_map_point{suffix}", float(shares[of_noun.argmax()])
            uniform = torch.full_like(shares, 1 / len(shares))
            for suffix, of_noun in (weights | {"_uniform": uniform, "_center": center_weights(data.grid)}).items():
                for class_suffix in ("", f"_{class_name}"):
                    yield f"test_map_mass{suffix}{class_suffix}", float(of_noun @ shares)


def _nouns(maps: SegmentationMaps, data: RegionCaptions, image: int, caption: str) -> Iterator[tuple[int, str, Tensor]]:
    """Yield for each noun of a caption its word index, its class, and the share of every region that has the class."""
    name = data.files[image].name
    if name in maps.indices:
        shares = maps.shares(name, data.grid)
        for index, word in enumerate(caption.split()):
            class_name = _CLASS_OF.get(word)
            if class_name in maps.classes and shares[maps.classes.index(class_name)].mean() >= _LEAST_AREA:
                yield index, class_name, shares[maps.classes.index(class_name)]
