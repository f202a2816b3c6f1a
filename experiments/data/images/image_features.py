"""Photographs as squares of one size, and features of their regions; both are computed once and cached on disk."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor, nn
from tqdm import tqdm

from experiments.data.images.captions import CaptionedImages, caption_words
from experiments.data.images.region_options import RegionOptions
from experiments.data.storage import cached_array, cached_file, checksum
from experiments.files import reading


class Scale(nn.Module):
    """Layer that normalizes pixels [B, 3, height, width] from 0 to 255 by the mean and deviation of each color."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] = (0.5, 0.5, 0.5), std: Sequence[float] = (0.25, 0.25, 0.25)) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(list(values)).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.std


@dataclass(frozen=True)
class GridEncoder:
    """Frozen network that computes features of the cells of a grid.

    Attributes:
        name: Name in results and in files of the cache.
        module: Maps pixels ``[B, 3, height, width]`` uint8 to features ``[B, channels, rows, columns]``.
    """

    name: str
    module: nn.Module


def fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 checksum of a module's description and weights."""
    weights = (f"{name} {checksum(tensor)}" for name, tensor in module.state_dict().items())
    return sha256(" ".join([repr(module), *weights]).encode()).hexdigest()


def fingerprint_of_files(paths: Sequence[Path]) -> str:
    """Return the SHA-256 checksum of the names, sizes and modification times of files."""
    stats = ((path.name, path.stat()) for path in paths)
    rows = "".join(f"{name} {status.st_size} {status.st_mtime_ns}\n" for name, status in stats)
    return sha256(rows.encode()).hexdigest()


def resized_images(data: CaptionedImages, size: int, folder: Path, *, progress: bool = False) -> Tensor:
    """Return the pixels of every photograph as a square, [images, 3, size, size] uint8, and cache them on disk.

    The whole photograph is resized to the square, so that nothing in its caption is cut off. Cached pixels are used if
    the names, sizes and modification times of the files are unchanged.
    """
    files = ((image, image.path.stat()) for image in data.images)
    key = [[image.name, image.offset, image.size, status.st_size, status.st_mtime_ns] for image, status in files]
    key.append(["upright"])  # pixels that an earlier version cached may lie on their side

    def pixels() -> np.ndarray:
        squares = np.empty((len(data), 3, size, size), np.uint8)
        for index, image in enumerate(tqdm(data.images, "photographs", disable=not progress)):
            squares[index] = square(image.open(), size)
        return squares

    return cached_array(folder, f"{data.name}-{data.split}-{size}", key, pixels)


def square(image: Image.Image, size: int) -> np.ndarray:
    """Return the pixels of a whole picture in RGB, resized to a square, [3, size, size] uint8."""
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized).transpose(2, 0, 1)


def shown_pixels(image: Image.Image) -> Tensor:
    """Return the pixels of a picture in its own shape, for a figure: [3, height, width] uint8, at most 640 a side."""
    smaller = image.copy()
    smaller.thumbnail((640, 640))
    return torch.from_numpy(np.array(smaller)).permute(2, 0, 1)


def grid_features(
    encoder: GridEncoder,
    pixels: Tensor,
    folder: Path,
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Tensor:
    """Return the features of the cells of every photograph, and cache them on disk; see `encode`.

    Cached features are used if the pixels ([images, 3, height, width] uint8) and the network are unchanged.
    """

    def features() -> np.ndarray:
        batches = tqdm(pixels.split(batch_size), encoder.name, disable=not progress)
        return torch.cat([encode(encoder, batch, device=device) for batch in batches]).numpy()

    return cached_array(folder, encoder.name, [fingerprint(encoder.module), checksum(pixels)], features)


def encode(encoder: GridEncoder, pixels: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Return the features of the cells of photographs.

    Args:
        encoder: The network.
        pixels: Pixels [images, 3, height, width] uint8.
        device: Where to compute.

    Returns:
        [images, cells, channels] float16 on the CPU, cells row by row.

    Raises:
        ValueError: A feature is too large for 16 bits, or NaN.
    """
    module = encoder.module.to(device).eval()
    with torch.no_grad():
        cells: Tensor = module(pixels.to(device)).flatten(2).transpose(1, 2).half()
    if not cells.isfinite().all():
        raise ValueError(f"{encoder.name}: features do not fit into 16 bits; expected numbers below 65504")
    return cells.cpu()


def encode_photograph(
    encoder: GridEncoder, image: Image.Image, size: int, *, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the features of one photograph, resized to a square of ``size`` pixels, and its picture.

    Returns:
        Features as by `encode`, and pixels as by `shown_pixels`.
    """
    return encode(encoder, torch.from_numpy(square(image, size))[None], device=device), shown_pixels(image)


def region_encoder(
    options: RegionOptions, pixels: Tensor, captions: Sequence[Sequence[str]], folder: Path, **training: Any
) -> GridEncoder:
    """Return the encoder of the options; all other arguments are those of `content_encoder`."""
    if options.encoder == "mobilenet_v2":
        return mobilenet_grid(options.encoder_weights)
    return content_encoder(pixels, captions, folder, epochs=options.encoder_epochs, **training)


# MobileNetV2 of torchvision


def mobilenet_grid(path: Path | None = None) -> GridEncoder:
    """Return MobileNetV2 up to the 320 channels of its last grid, which has 6 x 6 cells at 192 pixels.

    Args:
        path: File of the weights of TensorFlow's network (1001 classes) as safetensors under torchvision's names. That
            network takes pixels from -1 to 1, and pads only below and right where it halves the grid. When omitted,
            the weights are those of torchvision.

    Source:
        Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018.
    """
    from torchvision.models import MobileNet_V2_Weights, mobilenet_v2  # takes seconds

    if path is None:
        weights = MobileNet_V2_Weights.DEFAULT
        network, name = mobilenet_v2(weights=weights), f"mobilenet_v2-{weights.name}"
        preset = weights.transforms()
        scale = Scale(preset.mean, preset.std)
    else:
        # one class more than in torchvision's networks, for the background
        network, name, scale = mobilenet_v2(num_classes=1001), "mobilenet_v2-tensorflow", Scale(std=(0.5, 0.5, 0.5))
        expected = "MobileNetV2's weights in the format safetensors, under torchvision's names"
        with reading(path, expected, "name another file by --encoder-weights"):
            network.load_state_dict(safetensors.torch.load_file(path))
        same_padding(network)
    grid = nn.Sequential(scale, network.features[:18])  # one more layer widens 320 features to 1280
    return GridEncoder(name, grid.requires_grad_(False).eval())


def same_padding(module: nn.Module) -> nn.Module:
    """Change convolutions with stride 2 and kernel 3 in place to the padding "SAME" of TensorFlow.

    An even side gets one pixel at its end, an odd side one pixel at either end.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
            layer.padding = (0, 0)
            layer.register_forward_pre_hook(_pad)
    return module


def _pad(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    (grid,) = inputs
    return F.pad(grid, (grid.size(-1) % 2, 1, grid.size(-2) % 2, 1))


# a small encoder that is trained once to predict the content words of captions, and then frozen

_LEARNING_RATE = 2e-3  # largest learning rate of AdamW


class ContentEncoder(nn.Module):
    """Network of four convolutions with stride 2 and one with stride 1.

    96 pixels become 6 x 6 cells, 112 pixels become 7 x 7.
    """

    def __init__(self, num_words: int) -> None:
        super().__init__()
        layers = [_block(*pair, stride=2) for pair in pairwise((3, 32, 64, 128, 256))]
        self.grid = nn.Sequential(Scale(), *layers, _block(256, 256, stride=1))
        self.words = nn.Linear(256, num_words)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features [B, channels, rows, columns] of the cells of pixels [B, 3, height, width]."""
        features: Tensor = self.grid(pixels)
        return features

    def predict(self, pixels: Tensor) -> Tensor:
        """Return the logits [B, words] that a word occurs in a caption of an image."""
        logits: Tensor = self.words(self(pixels).mean((2, 3)))
        return logits


def _block(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def content_targets(captions: Sequence[Sequence[str]]) -> tuple[list[str], Tensor]:
    """Choose the words to predict, and find the images that have them in a caption.

    These are the 500 words that occur in the captions of most images, without scikit-learn's stop words and without
    single characters.

    Returns:
        The words, and [images, words] bool.

    Raises:
        ValueError: No caption has such a word.
    """
    bags = [{word for caption in texts for word in caption_words(caption)} for texts in captions]
    counts = Counter(word for bag in bags for word in sorted(bag) if len(word) > 1 and word not in ENGLISH_STOP_WORDS)
    words = [word for word, _ in counts.most_common(500)]
    if not words:
        raise ValueError(f"the captions of {len(captions)} images have no content word; expected captions in English")
    return words, torch.tensor([[word in bag for word in words] for bag in bags])


def content_encoder(
    pixels: Tensor,
    captions: Sequence[Sequence[str]],
    folder: Path,
    *,
    seed: int = 0,
    epochs: int = 15,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> GridEncoder:
    """Train an encoder, or load the cached one of the same data and settings.

    Args:
        pixels: Pixels of the training split, [images, 3, height, width] uint8; height and width divide by 16.
        captions: Captions of each image.
        folder: Folder of the cache.
        seed: Seed of the weights and of the order of the images; it is part of the name of the encoder.
        epochs: Epochs of the training.
        batch_size: Images of a batch.
        device: Where to train.
        progress: Show a progress bar.

    Raises:
        ValueError: Height or width do not divide by 16, or the captions have no content word.
    """
    if any(side % 16 for side in pixels.shape[2:]):
        raise ValueError(f"images have {list(pixels.shape[2:])} pixels; expected sides that divide by 16")
    words, targets = content_targets(captions)
    key = [checksum(pixels), words, checksum(targets), seed, epochs, batch_size, _LEARNING_RATE]
    name = f"content-encoder-seed{seed}"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = ContentEncoder(len(words)).to(device)

        def train(file: IO[bytes]) -> None:
            _train(encoder, pixels, targets, epochs, batch_size, name if progress else None)
            file.write(safetensors.torch.save(encoder.state_dict()))

        path = cached_file(folder, f"{name}.safetensors", key, train)
        with reading(path, "weights of this encoder", "remove the file, and the encoder is trained again"):
            encoder.load_state_dict(safetensors.torch.load_file(path))
    return GridEncoder(name, encoder.requires_grad_(False).eval())


def _train(
    encoder: ContentEncoder, pixels: Tensor, targets: Tensor, epochs: int, batch_size: int, bar: str | None
) -> None:
    device = encoder.words.bias.device
    with torch.no_grad():  # start at the frequencies of the words
        encoder.words.bias.copy_(torch.logit(targets.float().mean(0), eps=1e-3))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=_LEARNING_RATE, weight_decay=0.05)
    steps = max(2, epochs * -(-len(pixels) // batch_size))  # a single step would have the lowest learning rate
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in (progress := tqdm(range(epochs), bar, disable=bar is None)):
        total = 0.0
        for indices in torch.randperm(len(pixels)).split(batch_size):
            images = _augment(pixels[indices].to(device).float())
            loss = F.binary_cross_entropy_with_logits(encoder.predict(images), targets[indices].float().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(indices)
        progress.set_postfix(loss=f"{total / len(pixels):.4f}")


def _augment(images: Tensor) -> Tensor:
    """Mirror each image with probability 1/2, and shift all images by the same few pixels."""
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    images = torch.where(mirrored, images.flip(3), images)
    reach = images.shape[3] // 12
    down, right = torch.randint(2 * reach + 1, (2,)).tolist()
    padded = F.pad(images, [reach] * 4, mode="reflect")
    return padded[..., down : down + images.shape[2], right : right + images.shape[3]]
