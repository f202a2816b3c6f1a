"""The papers' claims on answers, each checked against the runs; they may well not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from experiments.report.claims import Claim, claims_part
from experiments.report.columns import Column, Runs
from experiments.report.report import Part
from experiments.report.statistics import Difference, paired_difference
from experiments.vqa.config import BlockName
from experiments.vqa.rows import ACCURACY, BLOCKS, IMAGES, NLL, in_noise

__all__ = ["claim_parts", "claims"]

Blocks = Mapping[BlockName, Mapping[str, Runs]]


def claims(blocks: Blocks) -> list[Claim]:
    """The papers' claims on the blocks that there are; none for a single seed, which has no interval.

    Source: Fan et al. (2020), section 4.2 and Table 2; Deng et al. (2018), Table 1; Ding et al. (2020), section 6.1.
    """
    if any(len(runs) == 1 for rows in blocks.values() for runs in rows.values()):
        return []
    found: list[Claim] = []

    def add(text: str, differences: Mapping[str, Difference]) -> None:
        found.append(Claim(text=text, differences=differences))

    if "bam" in blocks and "WC" in blocks["bam"]:
        soft, weibull = blocks["bam"]["soft"], blocks["bam"]["WC"]
        noisy = [images for images in IMAGES if IMAGES[images]]
        lost = {
            f"soft - WC, {images}": replace(
                paired_difference(_lost(soft, images), _lost(weibull, images)),
                digits=4,
                metric="accuracy lost to noise",
                against="WC",
                better="lower",
            )
            for images in noisy
        }
        add("WC loses less accuracy than soft to noise on the regions", lost)
        # the noise of soft attention is dropout alone; that of WC is both, as in the paper
        more = {
            f"WC - soft, {images}": _pavpu("both", images).difference(
                weibull, soft, "soft", other=_pavpu("mc_dropout", images)
            )
            for images in IMAGES
        }
        add("WC has a larger PAvPU (level .05) than soft with dropout", more)
    if "va" in blocks and "marginal" in blocks["va"]:
        difference = NLL.difference(blocks["va"]["soft"], blocks["va"]["marginal"], "marginal")
        add("the marginal likelihood has a smaller NLL than soft attention", {"soft - marginal": difference})
    if "dn" in blocks and len(blocks["dn"]) == len(BLOCKS["dn"].rows):
        rows = blocks["dn"]
        difference = ACCURACY.difference(rows["doubly_normalized"], rows["softmax"], "softmax")
        add("doubly normalised attention between views is more accurate", {"doubly - softmax": difference})
        sites = [name for name in rows["hybrid"][0] if name.startswith("hybrid_")]
        shares = {site: [metrics[site] for metrics in rows["hybrid"]] for site in sites}
        moved = {
            f"{site.removeprefix('hybrid_')} - .5": paired_difference(one, [0.5] * len(one))
            for site, one in shares.items()
        }
        add("hybrid attention moves from its beginning, .5, towards doubly normalised attention, 1", moved)
    return found


def _lost(runs: Runs, images: str) -> list[float]:
    """Accuracy on clean images less that on noisy ones, a number a seed."""
    clean, noisy = ACCURACY.values(runs), in_noise(ACCURACY, images).values(runs)
    return [before - after for before, after in zip(clean, noisy, strict=True)]


def _pavpu(kind: str, images: str) -> Column:
    return Column("PAvPU", f"test_pavpu_05/{kind}{IMAGES[images]}", 4, 100, better="higher")


def claim_parts(blocks: Blocks) -> list[Part]:
    """The part of a report with all claims; none without claims."""
    checked = claims(blocks)
    return [claims_part("Claims of the papers", checked, note="Accuracy and PAvPU are in percent.")] if checked else []
