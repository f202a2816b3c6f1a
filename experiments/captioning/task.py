"""Captioning of images with a latent attention to regions: images, network, its training, and a page of captions."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    own_photograph,
    read_maps,
)
from experiments.data.places import SPLITS, data_folder
from experiments.data.text.batches import ChoiceSampler, Vocabulary, train_tokenizer
from experiments.files import UserError, text_lines, user_errors
from experiments.folder import saved_config
from experiments.report.report import write_page
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.sequence.alignments import align_batch
from experiments.sequence.evaluation import validation_perplexities, warnings_of
from experiments.sequence.model import Encoded, TrainedSequences, assembled, fit_sequences, load_run, run_vocabulary
from experiments.sequence.own_text import write_lines
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
    """All splits; photographs are opened, and encoded where the cache has no features of them.

    ImportError, FileNotFoundError or ValueError say that torchvision or files are missing, or what is bad in them.
    """
    if config.dataset == "digits":
        return {split: scenes.first(config.images) for split, scenes in _digits().items()}
    kept, found = slice(config.images), dict[str, RegionCaptions]()
    folder = config.cache or data_folder(config.data_root) / config.dataset / "cache"
    size = config.size or (192 if config.encoder == "mobilenet_v2" else 96)
    opened = {}
    for split in SPLITS:  # everything is read before anything is trained
        data = load_captions(config.dataset, split, data_root=config.data_root)
        data = replace(data, images=data.images[kept], captions=data.captions[kept])
        opened[split] = data, resized_images(data, size, folder, progress=progress)
    where: dict[str, Any] = {"device": resolve_device(config.device), "progress": progress}
    train, pixels = opened["train"]
    encoder = region_encoder(config, pixels, train.captions, folder, seed=config.seed, **where)
    for split, (data, pixels) in opened.items():
        regions = grid_features(encoder, pixels, folder, **where)
        captions = [[" ".join(caption_words(caption)) for caption in texts] for texts in data.captions]
        grid = (math.isqrt(regions.size(1)),) * 2
        found[split] = RegionCaptions(regions, captions, grid, pixels, data.name, encoder, data.images)
    return found


def build(config: CaptioningConfig, vocabulary: Vocabulary, features: int) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme = config.build_scheme()
    if isinstance(objective := scheme.objective(), AttentionELBO):
        objective.kl = config.kl
        scheme = replace(scheme, objective=lambda: objective)
    width = config.hidden
    sizes = DecoderSizes(embedding=config.embedding, memory=width, decoder=width, attention=width)

    def make(prior: PriorFactory) -> Captioning:
        return Captioning(
            features, len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortized:
        network = RegionNetwork(features, model.embedding, hidden=width, dropout=config.dropout)
    # an image has another caption in every epoch: the loss is noisy
    return assembled(config, scheme, model, network, vocabulary, plateau=2)


def load_trained(folder: Path, features: int, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch; UserError where there is none."""
    return load_run(read_config(folder, device=device), folder, partial(build, features=features))


def read_config(folder: Path, **changes: Any) -> CaptioningConfig:
    """The configuration of the run in a folder."""
    # the weights are loaded: where they started does not matter any more
    return saved_config(folder, CaptioningConfig, script="experiments.captioning", init_from=None, **changes)


class CaptionData(NamedTuple):
    """All splits, and what is where in the test photographs, if that is known."""

    splits: dict[str, RegionCaptions]
    maps: SegmentationMaps | None


class CaptioningTask(Task[CaptioningConfig, Trained]):
    """Captions of images."""

    config = CaptioningConfig
    script = "experiments.captioning"

    def folder(self, config: CaptioningConfig) -> str:
        return f"captioning/{config.dataset}-{config.guide}-{config.seed}"

    def load(self, config: CaptioningConfig) -> CaptionData:
        images = load_images(config, progress=config.progress)
        usual = data_folder(config.data_root) / "flickr8k-voc-maps" / "flickr8k_voc_maps.npz"
        known = config.dataset != "digits" and (config.maps is not None or usual.is_file())
        return CaptionData(images, read_maps(config.maps or usual) if known else None)

    def build(self, config: CaptioningConfig, data: CaptionData, folder: Path) -> Trained:
        train = data.splits["train"]
        texts = [caption for captions in train.captions for caption in captions]
        vocabulary = run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))
        return build(config, vocabulary, features=train.regions.size(2))

    def restore(self, config: CaptioningConfig, folder: Path) -> Trained:
        return self.build(config, self.load(config), folder)

    def encode(self, trained: Trained, data: CaptionData) -> Encoded:
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
                folder = run.begin()
                trained = self.build(config, data, folder)
            encoded = self.encode(trained, data)
            fitted = fit_sequences(trained, encoded, folder)
            metrics, captions = evaluate(trained, data.splits, data.maps)
            write_lines(folder / "captions.txt", captions)
            return run.finish(metrics | validation_perplexities(trained, encoded, fitted) | fitted.metrics)

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return warnings_of(metrics)


def train(config: CaptioningConfig) -> None:
    """Run the command."""
    task = CaptioningTask()
    show_run(task, config, task.run(config))


# looking at captions


_PAGE = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how sure that "
    "is: what is looked at is clear, the rest is veiled. The prior is what it expected from the picture alone or "
    "before the word, the posterior the weights that it used or holds after the word. Point at a word or a region, or "
    "move to it with the Tab and arrow keys, to read the mean weight of each link, its 90 % credible interval and "
    "samples, where the weights are random."
)


def show(config: ShowConfig) -> Path:
    """Write the page: its file. The caption of a photograph of one's own is printed, too.

    Raises:
        UserError: No such run or image, a photograph that cannot be read, or weights that are negative.
    """
    with user_errors(ValueError, OSError, ImportError):
        # ahead of the data, which take longer to read
        image = None if config.photo is None else open_photograph(config.photo)
        data = load_images(read_config(config.run, device=config.device))["test"]
        captions = text_lines(config.run / "captions.txt", "train the run again")
        trained = load_trained(config.run, data.regions.size(2), device=config.device)
        places = config.images
        if image is not None:
            data, places = own_photograph(image, data, device=trained.device), (0,)
            captions = describe(trained, data)
            print(captions[0])
        if (most := max(places, default=0)) >= len(data):
            raise UserError(f"there is no test image {most}; expected numbers from 0 to {len(data) - 1}")
        views = [view_caption(trained, data, place, captions[place]) for place in places]
    path = config.out or config.run / "figures" / "captions.html"
    print(write_page(path, views, title=f"Captions by {trained.config.guide} attention", text=_PAGE))
    return path


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> RegionView:
    """One caption of the image at a place, such as one that the network has made, with its end as a word of its own.

    Raises:
        ValueError: Weights are negative, as Gaussian ones are.
    """
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]
    found, picture = align_batch(trained, batch, num_samples=num_samples), data.shown(image)
    if picture.dtype != torch.uint8:  # ink on paper, as shades of grey
        picture = (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return RegionView(
        title=f"image {image}", words=[*caption.split(), "(end)"], picture=picture, grid=data.grid,
        posterior=of_words(found.posterior[:, 0]), prior=None if found.prior is None else of_words(found.prior[0]),
    )  # fmt: skip
