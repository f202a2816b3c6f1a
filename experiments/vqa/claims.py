"""The papers' claims on answers, each checked against the runs; they may well not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.reporting.columns import Column, Runs
from experiments.reporting.report import Part
from experiments.reporting.statistics import Difference, paired_difference
from experiments.vqa.config import BlockName
from experiments.vqa.rows import ACCURACY, BLOCKS, IMAGES, NLL, in_noise

__all__ = ["Claim", "claim_parts", "claims"]

Blocks = Mapping[BlockName, Mapping[str, Runs]]


@dataclass(frozen=True)
class Claim:
    """That some mean differences over seeds, by what they are, are above zero.

    Example:
        >>> claim = Claim("it grows", {"new - old": paired_difference([2.0, 2.1], [1.0, 1.2])})
        >>> claim.verdict, Claim("it grows", {"new - old": paired_difference([2.0, 1.0], [1.0, 2.0])}).verdict
        ('holds', 'cannot be told')
    """

    text: str
    differences: Mapping[str, Difference]

    @property
    def verdict(self) -> str:
        """Whether every confidence interval is above zero, or one is not above it at all."""
        if all(found.low > 0 for found in self.differences.values()):
            return "holds"
        return "does not hold" if any(found.high <= 0 for found in self.differences.values()) else "cannot be told"

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.text}"]
        return "\n".join([*lines, *(f"    {name}: {found.text(4)}" for name, found in self.differences.items())])


def claims(blocks: Blocks) -> list[Claim]:
    """The papers' claims on the blocks that there are; none for a single seed, which has no interval.

    Source: Fan et al. (2020), section 4.2 and Table 2; Deng et al. (2018), Table 1; Ding et al. (2020), section 6.1.
    """
    if any(len(runs) == 1 for rows in blocks.values() for runs in rows.values()):
        return []
    found = []
    if "bam" in blocks and "WC" in blocks["bam"]:
        soft, weibull = blocks["bam"]["soft"], blocks["bam"]["WC"]
        noisy = [images for images in IMAGES if IMAGES[images]]
        lost = {
            f"soft - WC, {images}": paired_difference(_lost(soft, images), _lost(weibull, images)) for images in noisy
        }
        found.append(Claim("WC loses less accuracy than soft to noise on the regions", lost))
        # the noise of soft attention is dropout alone; that of WC is both, as in the paper
        more = {
            f"WC - soft, {images}": paired_difference(
                _pavpu("both", images).values(weibull), _pavpu("mc_dropout", images).values(soft)
            )
            for images in IMAGES
        }
        found.append(Claim("WC has a larger PAvPU (level .05) than soft with dropout", more))
    if "va" in blocks and "marginal" in blocks["va"]:
        difference = NLL.difference(blocks["va"]["soft"], blocks["va"]["marginal"])
        found.append(
            Claim("the marginal likelihood has a smaller NLL than soft attention", {"soft - marginal": difference})
        )
    if "dn" in blocks and len(blocks["dn"]) == len(BLOCKS["dn"].rows):
        rows = blocks["dn"]
        difference = ACCURACY.difference(rows["doubly_normalized"], rows["softmax"])
        found.append(
            Claim("doubly normalised attention between views is more accurate", {"doubly - softmax": difference})
        )
        sites = [name for name in rows["hybrid"][0] if name.startswith("hybrid_")]
        shares = {site: [metrics[site] for metrics in rows["hybrid"]] for site in sites}
        found.append(
            Claim(
                "hybrid attention moves from its beginning, .5, towards doubly normalised attention, 1",
                {f"{site.removeprefix('hybrid_')} - .5": paired_difference(one, [0.5] * len(one))
                 for site, one in shares.items()},
            )
        )  # fmt: skip
    return found


def _lost(runs: Runs, images: str) -> list[float]:
    """Accuracy on clean images less that on noisy ones, a number a seed."""
    clean, noisy = ACCURACY.values(runs), in_noise(ACCURACY, images).values(runs)
    return [before - after for before, after in zip(clean, noisy, strict=True)]


def _pavpu(kind: str, images: str) -> Column:
    return Column("PAvPU", f"test_pavpu_05/{kind}{IMAGES[images]}", 4, 100)


def claim_parts(blocks: Blocks) -> list[Part]:
    """The part of a report with all claims; none without claims."""
    text = (
        "Mean differences over the seeds with 95 % confidence intervals, accuracy and PAvPU in percent. A claim holds "
        "where all intervals are above 0, it does not hold where one is not above 0 at all, and else it cannot be told."
    )
    checked = claims(blocks)
    return [Part("Claims of the papers", text, lines="\n".join(map(str, checked)))] if checked else []
