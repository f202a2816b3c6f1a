"""A small convolutional encoder, trained once to predict the content words of captions, then frozen."""

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor, nn
from tqdm import tqdm

from experiments.datasets.arrays import checksum, read_arrays
from experiments.datasets.images.captions import caption_words
from experiments.datasets.images.image_features import GridEncoder, Scale
from experiments.files import locked, write_atomic

_CHANNELS = (32, 64, 128)
_LEARNING_RATE = 2e-3  # the largest, of AdamW


class ContentEncoder(nn.Module):
    """Four convolutions that halve the picture, and one more: 96 pixels become a grid of 6 x 6, 112 one of 7 x 7."""

    def __init__(self, num_words: int, channels: int = 256) -> None:
        super().__init__()
        widths = (3, *_CHANNELS, channels)
        layers = [_block(*pair, stride=2) for pair in pairwise(widths)]
        self.grid = nn.Sequential(*layers, _block(channels, channels, stride=1))
        self.words = nn.Linear(channels, num_words)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features of the cells, [B, channels, rows, columns], of [B, 3, height, width]."""
        features: Tensor = self.grid(pixels)
        return features

    def predict(self, pixels: Tensor) -> Tensor:
        """Return [B, words], logits of every word's being in a caption."""
        logits: Tensor = self.words(self(pixels).mean((2, 3)))
        return logits


def _block(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def content_targets(captions: Sequence[Sequence[str]], *, most: int = 500) -> tuple[list[str], Tensor]:
    """Choose the words to predict, and say in [images, words] bool which images have them in a caption.

    They are the words that are in the captions of most images, but for scikit-learn's stop words and single characters.
    """
    bags = [{word for caption in texts for word in caption_words(caption)} for texts in captions]
    counts = Counter(word for bag in bags for word in sorted(bag) if len(word) > 1 and word not in ENGLISH_STOP_WORDS)
    words = [word for word, _ in counts.most_common(most)]
    if not words:
        raise ValueError(f"{len(captions)} images, no content word in their captions; expected captions in English")
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
    train: bool = True,
) -> GridEncoder:
    """Train an encoder, or take the one that was trained with the same data and settings before.

    The pixels, [images, 3, height, width] uint8, are of the training split only; height and width divide by 16. The
    seed is that of the weights and of the order of the images; the encoder is named after it. Without `train`, it has
    to be there.
    """
    if any(side % 16 for side in pixels.shape[2:]):
        raise ValueError(f"images of {list(pixels.shape[2:])} pixels; expected sides that divide by 16")
    words, targets = content_targets(captions)
    settings = [seed, epochs, batch_size, _LEARNING_RATE]
    key = json.dumps({"pixels": checksum(pixels), "targets": [words, checksum(targets)], "settings": settings})
    name = f"content-encoder-seed{seed}"
    path = folder / f"{name}-{sha256(key.encode()).hexdigest()[:16]}.npz"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = ContentEncoder(len(words)).to(device)
        if not path.is_file():
            if not train:
                raise FileNotFoundError(
                    f"{path} is missing; expected the weights of the encoder that made the features of the training. "
                    f"Put the file back, or train again with --overwrite, which trains an encoder too."
                )
            with locked(path):
                if not path.is_file():  # no other process has trained it meanwhile
                    _train(encoder, pixels, targets, epochs, batch_size, name if progress else None)
                    weights: dict[str, Any] = {
                        part: value.cpu().numpy() for part, value in encoder.state_dict().items()
                    }
                    write_atomic(path, lambda file: np.savez(file, **weights))
        arrays = read_arrays(path, "remove the file, and the encoder is trained again")
        encoder.load_state_dict({name: torch.from_numpy(arrays[name]) for name in encoder.state_dict()})
    return GridEncoder(name, encoder.requires_grad_(False).eval(), Scale())


def _train(
    encoder: ContentEncoder, pixels: Tensor, targets: Tensor, epochs: int, batch_size: int, bar: str | None
) -> None:
    device, scale = next(encoder.parameters()).device, Scale()
    with torch.no_grad():  # begin with the words' frequencies
        encoder.words.bias.copy_(torch.logit(targets.float().mean(0), eps=1e-3))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=_LEARNING_RATE, weight_decay=0.05)
    steps = epochs * -(-len(pixels) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in (progress := tqdm(range(epochs), bar, disable=bar is None)):
        total = 0.0
        for places in torch.randperm(len(pixels)).split(batch_size):
            images = _augmented(scale(pixels[places].to(device)))
            loss = F.binary_cross_entropy_with_logits(encoder.predict(images), targets[places].float().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(places)
        progress.set_postfix(loss=f"{total / len(pixels):.4f}")


def _augmented(images: Tensor) -> Tensor:
    """Mirror half of the images, and shift all by the same few pixels."""
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    images = torch.where(mirrored, images.flip(3), images)
    reach = images.shape[3] // 12
    down, right = torch.randint(2 * reach + 1, (2,)).tolist()
    padded = F.pad(images, [reach] * 4, mode="reflect")
    return padded[..., down : down + images.shape[2], right : right + images.shape[3]]
