"""Rows of the table of captions, the settings tried for them, the paper's numbers, and what every row starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.captioning.config import (
    CaptioningConfig,
    CaptioningOptions,
    CompareCaptions,
    RowName,
    TableConfig,
)
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.harness.options import options_of

__all__ = ["FROM", "GRIDS", "LEGEND", "PAPER", "ROWS", "base_config", "features_text", "floor_text"]

ROWS: Mapping[RowName, Mapping[str, Any]] = {
    "soft": {"guide": "soft"},
    "hard": {"guide": "hard_sample", "kl_weight": 1.0},
    "LC": {"guide": "lognormal", "prior": "contextual"},
    "LF": {"guide": "lognormal", "prior": "fixed"},
    "WC": {"guide": "weibull", "prior": "contextual"},
    "WF": {"guide": "weibull", "prior": "fixed"},
}
LEGEND = (
    "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; hard: one region a word, by the score function."
)
GRIDS: Mapping[RowName, Sequence[Mapping[str, float]]] = {
    "LC": [{"kl_weight": 0.01, "scale": 0.1}, {"kl_weight": 0.001, "scale": 0.1}, {"kl_weight": 0.001, "scale": 0.5}],
    "WC": [
        {"kl_weight": 0.01, "concentration": 10.0},
        {"kl_weight": 0.001, "concentration": 10.0},
        {"kl_weight": 0.001, "concentration": 2.5},
    ],
}
"""Settings tried; a Weibull variable of concentration k has a logarithm of standard deviation 1.28 / k."""
FROM: Mapping[RowName, RowName] = {"LF": "LC", "WF": "WC"}
"""Rows that take the setting of another one."""
PAPER: Mapping[str, str] = {
    "soft": "32.2 / 54.7 / 104.0",
    "hard": "26.5 / 50.7 / 84.4",
    "LC": "32.7 / 54.8 / 105.0",
    "WC": "32.8 / 54.9 / 104.5",
}
"""BLEU-4, ROUGE-L and CIDEr of Table 3 (COCO, regions of a detector); it has no rows of fixed priors."""


def base_config(config: CompareCaptions | TableConfig, folder: Path, seed: int) -> CaptioningConfig:
    """Soft attention, from the beginning: what the rows of a sweep in a folder go on from."""
    epochs = max(1, config.base_epochs)
    return CaptioningConfig(
        **config.for_runs(), **options_of(config, CaptioningOptions), guide="soft", seed=seed, max_epochs=epochs,
        patience=epochs, embedding=max(8, config.hidden // 2), out=folder / "runs" / f"base-{seed}",
    )  # fmt: skip


def features_text(encoder: str, test: RegionCaptions) -> str:
    """What the regions are."""
    rows, columns = test.grid
    return f"Features: {encoder}, {rows} x {columns} regions; {len(test)} test images."


def floor_text(metrics: Mapping[str, float]) -> str:
    """What random captions score, of the metrics of any run."""
    return (
        f"Captions of random training images: BLEU-1 {metrics['floor_bleu_1']:.1f}, CIDEr-D "
        f"{metrics['floor_cider_d']:.1f}."
    )
