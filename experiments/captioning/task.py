"""Captioning of images with latent attention to regions: images, network, training, and a page of captions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.captioning.config import CaptioningConfig, ShowConfig
from experiments.captioning.evaluation import describe, evaluate
from experiments.data.images.captions import caption_words, load_captions, open_photograph
from experiments.data.images.digit_scenes import digit_scenes
from experiments.data.images.image_features import grid_features, region_encoder, resized_images
from experiments.data.images.region_captions import (
    EncodedCaptions,
    RegionCaptions,
    SegmentationMaps,
    photograph_regions,
    read_maps,
)
from experiments.data.images.regions import region_features
from experiments.data.storage import SPLITS, data_folder
from experiments.data.text.batches import ChoiceSampler, Vocabulary, train_tokenizer
from experiments.files import UserError, check_outputs, text_lines, user_errors
from experiments.folder import saved_config
from experiments.report.report import write_page
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.sequence.alignments import align_batch
from experiments.sequence.evaluation import training_warnings
from experiments.sequence.model import Encoded, TrainedSequences, assemble, load_run, run_vocabulary
from experiments.sequence.run import train_and_score
from experiments.training import PriorFactory, resolve_device, seeded_build
from guides.inference_network import RegionNetwork
from models.captioning import Captioning
from models.decoder import DecoderSizes
from pyro_attention import AttentionELBO
from pyro_attention.analysis import merge_pieces
from pyro_attention.viewer import RegionView

Trained = TrainedSequences[CaptioningConfig, Captioning]


_digits = cache(partial(digit_scenes, train=6000, most_digits=2))


def load_images(config: CaptioningConfig, *, progress: bool = False) -> dict[str, RegionCaptions]:
    """Load the images of all splits as regions; photographs are encoded unless the cache has their features.

    Raises:
        ImportError: torchvision is missing.
        FileNotFoundError: A file is missing.
        ValueError: A file has bad content.
    """
    if config.dataset == "digits":
        return {split: scenes.first(config.images) for split, scenes in _digits().items()}
    if config.features is not None:
        return load_boxes(config, config.features, progress=progress)
    folder = config.cache or data_folder(config.data_root) / config.dataset / "cache"
    size = config.size or (192 if config.encoder == "mobilenet_v2" else 96)
    photographs = {}
    for split in SPLITS:  # all splits are read before the encoder is trained
        data = load_captions(config.dataset, split, data_root=config.data_root)
        data = replace(data, images=data.images[: config.images], captions=data.captions[: config.images])
        photographs[split] = data, resized_images(data, size, folder, progress=progress)
    options: dict[str, Any] = {"device": resolve_device(config.device), "progress": progress}
    train, pixels = photographs["train"]
    encoder = region_encoder(config, pixels, train.captions, folder, seed=config.seed, **options)
    images = dict[str, RegionCaptions]()
    for split, (data, pixels) in photographs.items():
        regions = grid_features(encoder, pixels, folder, **options)
        captions = [[" ".join(caption_words(caption)) for caption in texts] for texts in data.captions]
        grid = (math.isqrt(regions.size(1)),) * 2
        images[split] = RegionCaptions(regions, captions, grid, pixels, data.name, encoder, data.images)
    return images


def load_boxes(config: CaptioningConfig, folder: Path, *, progress: bool = False) -> dict[str, RegionCaptions]:
    """Load all splits with regions from files; the photographs are not opened.

    Raises:
        UserError: There is no such folder of features.
        FileNotFoundError: Files of captions are missing.
        ValueError: Files of features are missing, names have no numbers, or features differ in their number of regions
            or in their width.
    """
    if not folder.is_dir():
        raise UserError(f"features is {folder}, expected a folder with a file of features for every photograph")
    splits = dict[str, RegionCaptions]()
    cache = config.cache or data_folder(config.data_root) / config.dataset / "cache"
    for split in SPLITS:
        data = load_captions(config.dataset, split, data_root=config.data_root)
        names = [image.name for image in data.images[: config.images]]
        numbers = [re.search(r"(\d+)$", Path(name).stem) for name in names]
        if unnamed := [name for name, number in zip(names, numbers, strict=True) if number is None]:
            raise ValueError(
                f"photograph {unnamed[0]} of {split} has no number at the end of its name, as those of COCO have, so "
                f"no file of {folder} belongs to it; leave out --features"
            )
        regions = region_features(
            [folder], f"{config.dataset}-{split}", [int(number[1]) for number in numbers if number], cache,
            progress=progress,
        )  # fmt: skip
        if not regions.mask.all():
            index = int((~regions.mask).any(-1).nonzero()[0])
            raise ValueError(
                f"{folder}: photograph {names[index]} has {int(regions.mask[index].sum())} regions, and another "
                f"{regions.mask.size(-1)}; expected as many of every photograph, such as 36"
            )
        captions = [[" ".join(caption_words(caption)) for caption in texts] for texts in data.captions[: config.images]]
        splits[split] = RegionCaptions(regions.features, captions, (0, 0), Tensor(), data.name)
    widths = {split: data.regions.size(-1) for split, data in splits.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(f"{folder}: features of the widths {widths}, expected one width")
    return splits


def build(config: CaptioningConfig, vocabulary: Vocabulary, features: int) -> Trained:
    """Build network, guide and objective, untrained or with the weights of ``init_from``.

    Args:
        config: Options of the run.
        vocabulary: Word pieces.
        features: Width of the features of a region.
    """
    scheme = config.build_scheme()
    if isinstance(objective := scheme.objective(), AttentionELBO):
        objective.kl = config.kl
        scheme = replace(scheme, objective=lambda: objective)
    width = config.hidden
    sizes = DecoderSizes(embedding=config.embedding, memory=width, decoder=width, attention=width)

    def build_model(prior: PriorFactory) -> Captioning:
        return Captioning(
            features, len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1),
        )  # fmt: skip

    model = seeded_build(build_model, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortized:
        network = RegionNetwork(features, model.embedding, hidden=width, dropout=config.dropout)
    # the loss is noisy, since an image has another caption in every epoch
    return assemble(config, scheme, model, network, vocabulary, plateau=2)


def load_trained(folder: Path, features: int, *, device: str = "auto") -> Trained:
    """Load the network of a finished run, with the weights of its best epoch.

    Raises:
        UserError: The folder holds no finished captioning run.
    """
    return load_run(read_config(folder, device=device), folder, partial(build, features=features))


def read_config(folder: Path, **changes: Any) -> CaptioningConfig:
    """Read the configuration of the run in a folder, with changes."""
    # the weights are loaded, so their initial values are not needed
    return saved_config(folder, CaptioningConfig, script="experiments.captioning", init_from=None, **changes)


class CaptionData(NamedTuple):
    """Images of all splits, and segmentation maps of the test photographs, if there are any."""

    splits: dict[str, RegionCaptions]
    maps: SegmentationMaps | None


class CaptioningTask(Task[CaptioningConfig, Trained]):
    """Captioning of images."""

    config = CaptioningConfig
    script = "experiments.captioning"

    def folder(self, config: CaptioningConfig) -> str:
        return f"captioning/{config.dataset}-{config.guide}-{config.seed}"

    def main_metrics(self, config: CaptioningConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return (
            "test_cider_d",
            "test_bleu_4",
            "test_nltk_meteor",
            "test_rouge_l",
            "test_ppl",
            "test_pointing",
            "val_ppl",
        )

    def load(self, config: CaptioningConfig) -> CaptionData:
        """Load images and segmentation maps."""
        if config.maps is not None and config.features is not None:
            raise UserError(
                f"maps is {config.maps}, but regions of --features are no grid over the photograph, so that a map does "
                f"not say what they show; leave out --maps"
            )
        images = load_images(config, progress=config.progress)
        default = data_folder(config.data_root) / "flickr8k-voc-maps" / "flickr8k_voc_maps.npz"
        is_grid = config.dataset != "digits" and config.features is None
        has_maps = is_grid and (config.maps is not None or default.is_file())
        return CaptionData(images, read_maps(config.maps or default) if has_maps else None)

    def build(self, config: CaptioningConfig, data: CaptionData, folder: Path) -> Trained:
        """Build the network, with the vocabulary in the folder of the run, which is trained first if it is missing."""
        train = data.splits["train"]
        texts = [caption for captions in train.captions for caption in captions]
        vocabulary = run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))
        return build(config, vocabulary, features=train.regions.size(2))

    def restore(self, config: CaptioningConfig, folder: Path) -> Trained:
        return self.build(config, self.load(config), folder)

    def encode(self, trained: Trained, data: CaptionData) -> Encoded:
        """Return training and validation captions as ids; a training image has one random caption in every epoch."""
        train = EncodedCaptions(data.splits["train"], trained.vocabulary)
        val = EncodedCaptions(data.splits["val"], trained.vocabulary, references=1)
        sizes = {"sentences": trained.config.batch_size, "seed": trained.config.seed}
        sampler = ChoiceSampler(train.lengths, train.counts, **sizes)
        return Encoded(train, val, sampler, train.targets)

    def run(self, config: CaptioningConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                trained = self.build(config, data, run.begin())
            encoded = self.encode(trained, data)
            return train_and_score(
                run, trained, encoded, lambda: evaluate(trained, data.splits, data.maps),
                file="captions.txt", patience=config.patience,
            )  # fmt: skip

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return training_warnings(metrics)


def train(config: CaptioningConfig) -> None:
    """Train a captioning network, and print its metrics."""
    task = CaptioningTask()
    show_run(task, config, task.run(config))


# a page of captions


_PAGE = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how certain "
    "that is. Regions with a large weight are clear, the others are veiled. The prior is what the network expected "
    "from the picture alone, or before the word. The posterior shows the weights that it used, or what it believes "
    "after the word. Point at a word or a region, or move to it with the Tab and arrow keys, to read the mean weight "
    "of each link, and its 90 % credible interval and samples if the weights are random."
)


def show(config: ShowConfig) -> Path:
    """Write a page that shows where the network looks, and return its file.

    The caption of the user's own photograph is also printed.

    Raises:
        UserError: The run or an image is missing, the photograph cannot be read, a file would be replaced, or weights
            are negative.
    """
    path = config.out or config.run / "figures" / "captions.html"
    # what is among the figures of the run is its own
    check_outputs([path], [config.photo] if config.photo else [], overwrite=config.overwrite or config.out is None)
    if not config.images:
        raise UserError("--images is empty, expected the number of a test image, such as --images '[0]'")
    with user_errors(ValueError, OSError, ImportError):
        # the photograph is checked before the data, which take longer to read
        photo = None if config.photo is None else open_photograph(config.photo)
        data = load_images(read_config(config.run, device=config.device))["test"]
        if 0 in data.grid:
            raise UserError(f"{config.run} has regions from --features, which are no grid, so no page can show them")
        captions = text_lines(config.run / "captions.txt", "train the run again")
        if photo is None and len(captions) != len(data):
            raise UserError(
                f"{config.run / 'captions.txt'} has {len(captions)} captions, and the test part {len(data)} images, so "
                f"that captions would stand below other images; bring back the data of the training, or train again"
            )
        trained = load_trained(config.run, data.regions.size(2), device=config.device)
        images = config.images
        if photo is not None:
            data, images = photograph_regions(photo, data, device=trained.device), (0,)
            captions = describe(trained, data)
            print(captions[0])
        if (largest := max(images, default=0)) >= len(data):
            raise UserError(f"there is no test image {largest}; expected numbers from 0 to {len(data) - 1}")
        views = [view_caption(trained, data, index, captions[index]) for index in images]
    print(write_page(path, views, title=f"Captions by {trained.config.guide} attention", text=_PAGE))
    return path


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> RegionView:
    """Return a view of the weights of one caption; the end of the caption is a word, too.

    Args:
        trained: The network.
        data: Images.
        image: Index of the image.
        caption: Its caption, such as one that the network wrote.
        num_samples: Number of posterior samples.

    Raises:
        ValueError: Weights are negative, as Gaussian weights may be.
    """
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    words = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in words]
    alignment, picture = align_batch(trained, batch, num_samples=num_samples), data.shown(image)
    if picture.dtype != torch.uint8:  # ink on paper, as shades of gray
        picture = (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)

    def merged(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return RegionView(
        title=f"image {image}", words=[*caption.split(), "(end)"], picture=picture, grid=data.grid,
        posterior=merged(alignment.posterior[:, 0]),
        prior=None if alignment.prior is None else merged(alignment.prior[0]),
    )  # fmt: skip
