"""From views to the numbers that a page holds: whole per mille, and few samples."""

from __future__ import annotations

import base64
import math
import string
import struct
import zlib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.viewer.views import AlignmentView, Panel, RegionView, View

__all__ = ["LEAST", "LEVEL", "MOST_SAMPLES", "differing", "index_entry", "payload"]

LEVEL = 0.9  # mass of the credible intervals
MOST_SAMPLES = 40  # of each link that the page draws; mean and interval are of all
LEAST = 0.01  # links whose interval ends below it have neither interval nor samples in the page
_DIGITS = (string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/").encode()  # 0 to 63, as in base64
_LONGEST = 160  # letters of a sentence in the list


def differing(view: View) -> list[Panel]:
    """The panels that are compared: the schemes' posteriors, or else prior and posterior, or else none."""
    posteriors = [panel for panel in view.panels if panel.name == "posterior"]
    if len(posteriors) > 1 or not posteriors:
        return posteriors
    return view.panels if len(view.panels) == 2 else []


def index_entry(view: View) -> dict[str, Any]:
    """What the list of all views knows of one: its text, and numbers from 0 to 1 that it is sorted and filtered by.

    ``uncertainty`` and ``most`` are mean and maximum over the words of the entropy of their mean weights, over the log
    of their number; ``width`` is the mean width of the credible interval of each word's largest weight, None without
    samples; ``difference`` is the largest mean total variation between two of the panels that are compared.
    """
    panels = [panel for panel in view.panels if panel.name != "prior"]
    entropy = torch.stack([_uncertainty(panel.samples.mean(0)) for panel in panels]).mean(0)
    widths = [_width(panel.samples) for panel in panels if len(panel.samples) > 1]
    means = [panel.samples.mean(0) for panel in differing(view)]
    distances = [0.5 * (one - other).abs().sum(-1).mean().item() for one, other in combinations(means, 2)]
    return {
        "title": view.title,
        "text": " ".join(view.rows)[:_LONGEST],
        "uncertainty": round(entropy.mean().item(), 4),
        "most": round(entropy.max().item(), 4),
        "width": round(sum(widths) / len(widths), 4) if widths else None,
        "difference": round(max(distances), 4) if distances else None,
    }


def payload(view: View) -> dict[str, Any]:
    """All that is shown of a view once it is chosen; a weight of 0.25 is 250."""
    found: dict[str, Any] = {
        "title": view.title,
        "names": {"target": view.names[0], "source": view.names[1]},
        "target": list(view.rows),
        "source": list(view.columns),
        "panels": [_panel(panel) for panel in view.panels],
    }
    if isinstance(view, RegionView):
        found |= {"picture": _data_uri(view.picture), "grid": list(view.grid)}
    if isinstance(view, AlignmentView) and view.gold is not None:
        gold = view.gold
        found["gold"] = [[source, target, (source, target) in gold.sure] for source, target in sorted(gold.possible)]
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    mean, largest = panel.samples.mean(0), math.ceil(1000 * panel.samples.max().item() - 1e-3)  # not 51 of .05
    return {
        "group": panel.group,
        "name": panel.name,
        "count": len(panel.samples),
        "mean": _per_mille(mean),
        "uncertainty": _per_mille(_uncertainty(mean)),
        "largest": largest,
        "links": _links(panel.samples, max(1, largest)) if len(panel.samples) > 1 else [],
    }


def _links(samples: Tensor, largest: int) -> list[list[list[Any]]]:
    """Of each row the links that may be at least LEAST: column, ends of the interval, and samples as digits.

    The digit 63 stands for the largest sample, so that small weights are as exact as large ones.
    """
    mean, low, high = equal_tailed(samples, LEVEL)
    kept = torch.linspace(0, len(samples) - 1, min(len(samples), MOST_SAMPLES)).round().long()
    digits = torch.tensor(list(_DIGITS), dtype=torch.uint8)[
        (63_000 / largest * samples[kept]).round().clamp_max(63).long()
    ]
    text, count = digits.permute(1, 2, 0).contiguous().numpy().tobytes().decode("ascii"), len(kept)
    ends, columns = torch.stack([_rounded(low), _rounded(high)], -1).tolist(), mean.size(1)
    found: list[list[list[Any]]] = [[] for _ in range(len(mean))]
    for row, column in (high.maximum(mean) >= LEAST).nonzero().tolist():
        place = (row * columns + column) * count
        found[row].append([column, *ends[row][column], text[place : place + count]])
    return found


def _uncertainty(mean: Tensor) -> Tensor:
    """Entropy of each row of mean weights ``[M, N]`` over the logarithm of N, 0 to 1."""
    rows = mean.double() / mean.double().sum(-1, keepdim=True).clamp_min(1e-12)
    entropy: Tensor = torch.special.entr(rows).sum(-1)
    return entropy / math.log(max(2, mean.size(-1)))


def _width(samples: Tensor) -> float:
    """Mean over the rows of the width of the interval of their largest mean weight."""
    mean, low, high = equal_tailed(samples, LEVEL)
    largest = mean.argmax(-1, keepdim=True)
    return (high - low).gather(-1, largest).mean().item()


def _rounded(values: Tensor) -> Tensor:
    return (1000 * values).round().long()


def _per_mille(values: Tensor) -> Sequence[Any]:
    found: list[Any] = _rounded(values).tolist()
    return found


def _data_uri(picture: Tensor) -> str:
    """A picture as PNG inside an address; the format is written here, so that no library of pictures is needed."""
    rows = picture.cpu().permute(1, 2, 0) if picture.dim() == 3 else picture.cpu().unsqueeze(-1)
    height, width, channels = rows.shape
    lines = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows.reshape(height, -1)], 1)  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(lines.numpy().tobytes(), 9)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
