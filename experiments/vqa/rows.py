"""What the tables of answers hold: rows by block, what is shown of each run, and the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.report.columns import Column
from experiments.vqa.config import BlockName

__all__ = ["ACCURACY", "BLOCKS", "GRIDS", "IMAGES", "NLL", "POSTERIORS", "Block", "in_noise", "scores"]

IMAGES = {"clean": "", "noise .5": "/noise_0.5"}  # with the end of the metrics' names
_TRAINED_NOISE = 0.5
_WEIGHTS: list[dict[str, float]] = [{"kl_weight": weight} for weight in (1e-3, 1e-4, 1e-5)]
GRIDS: Mapping[str, Sequence[Mapping[str, float]]] = {
    "LC": [*_WEIGHTS, {"kl_weight": 1e-5, "scale": 0.01}],
    "WC": [*_WEIGHTS, {"kl_weight": 1e-5, "concentration": 100.0}],
}
"""Settings tried on validation questions; see experiments.vqa search."""
POSTERIORS: Mapping[str, Mapping[str, Any]] = {
    "soft": {"guide": "soft"},
    "LF": {"guide": "lognormal", "prior": "fixed"},
    "LC": {"guide": "lognormal", "prior": "contextual"},
    "WF": {"guide": "weibull", "prior": "fixed"},
    "WC": {"guide": "weibull", "prior": "contextual"},
}
_SEARCHED: Mapping[str, Mapping[str, float]] = {
    "soft": {}, "lognormal": {"kl_weight": 1e-5}, "weibull": {"kl_weight": 1e-5, "concentration": 100.0}
}  # fmt: skip
"""The best settings of the search on digit questions; those of contextual priors, for fixed ones too."""
_CHOSEN = {row: {**options, **_SEARCHED[options["guide"]]} for row, options in POSTERIORS.items()}
ACCURACY = Column("accuracy %", "test_accuracy/mean", 2, 100)
NLL = Column("NLL", "test_nll/mean")


@dataclass(frozen=True)
class Block:
    """Rows of one model, and the numbers of the paper that it comes from.

    Attributes:
        title: Heading.
        text: What the rows are.
        rows: Their options.
        columns: What is shown first, with differences to the first row.
        compared: Rows that are compared with another row than the first.
        paper: The paper's numbers as they are shown, by row.
        source: The paper's table, and its data.
        more: Columns that are shown without differences.
    """

    title: str
    text: str
    rows: Mapping[str, Mapping[str, Any]]
    columns: Sequence[Column]
    paper: Mapping[str, str]
    source: str
    compared: Mapping[str, str] = field(default_factory=dict)
    more: Sequence[Column] = ()

    def reference(self, row: str) -> str:
        """The row that a row is compared with; itself where there is none."""
        return self.compared.get(row, next(iter(self.rows)))


def in_noise(column: Column, images: str) -> Column:
    """The same number on noisy images."""
    return Column(f"{column.name}, {images}", column.metric + IMAGES[images], column.digits, column.factor)


def scores(kind: str) -> list[Column]:
    """Scores of a kind of prediction."""
    return [
        Column("accuracy %", f"test_accuracy/{kind}", 2, 100),
        Column("NLL", f"test_nll/{kind}"),
        Column("ECE", f"test_ece/{kind}"),
        Column("NLL, scaled", f"test_scaled_nll/{kind}"),
        Column("ECE, scaled", f"test_scaled_ece/{kind}"),
        *(Column(f"PAvPU .{level}", f"test_pavpu_{level}/{kind}", 1, 100) for level in ("01", "05", "10")),
        Column("AUROC entropy", f"test_auroc_entropy/{kind}"),
        Column("AUROC mutual information", f"test_auroc_mutual_information/{kind}"),
        Column("AUROC attention variance", f"test_auroc_attention_variance/{kind}"),
    ]


_LOOKING = (
    Column("mass on relevant %", "relevant_mass", 1, 100),
    Column("uniform %", "uniform_mass", 1, 100, spread=False),
    Column("entropy of attention", "attention_entropy"),
)
_COST = (Column("validation %", "val_accuracy", 2, 100), Column("epochs", "epochs", 0), Column("ms/step", "step_ms", 0))

BLOCKS: dict[BlockName, Block] = {
    "bam": Block(
        title="Bayesian Attention Modules, Table 2: MCAN",
        text=(
            "Every attention of MCAN is random. LF, LC: LogNormal posterior with fixed and contextual prior; WF, WC: "
            f"Weibull posterior. In noise: trained with noise of standard deviation {_TRAINED_NOISE:g} on the regions. "
            "Noise is Gaussian, in units of the features' standard deviation; where the row does not say so, it is "
            "there at test time alone. Attention at its posterior mean, no dropout. Question only: soft, trained and "
            "tested with all regions blank."
        ),
        rows=_CHOSEN
        | {f"{row}, in noise": _CHOSEN[row] | {"feature_noise": _TRAINED_NOISE} for row in ("soft", "WC")}
        | {"question only": _CHOSEN["soft"] | {"blind": True}},
        columns=[*(in_noise(ACCURACY, images) for images in IMAGES), in_noise(NLL, "clean")],
        paper={
            "soft": "66.95 / 61.25; 70.04 / 65.34",
            "LF": "66.89 / 61.43; 69.92 / 65.48",
            "LC": "66.93 / 61.58; 70.14 / 65.60",
            "WF": "66.93 / 61.60; 70.09 / 65.62",
            "WC": "67.02 / 62.89; 71.21 / 66.75",
        },
        source="accuracy clean / noisy; PAvPU clean / noisy, on VQA-v2",
        compared={"WC, in noise": "soft, in noise"},
        more=(*_LOOKING, *_COST),
    ),
    "va": Block(
        title="Latent Alignment and Variational Attention, Tables 1 and 3: one alignment",
        text=(
            "A question looks at one region. Alignments are summed out at test time, so NLL is exact; soft attention "
            "has no alignment. The mass is that of the weights that predict, which have not seen the answer."
        ),
        rows={
            guide: {"model": "bottom_up", "guide": guide}
            for guide in ("soft", "marginal", "hard_enum", "hard_sample", "categorical_enum", "categorical_sample")
        },
        columns=(NLL, ACCURACY),
        paper={
            "soft": "1.76, 58.93, 2.70",
            "marginal": "1.69, 60.33, 2.66",
            "hard_enum": "1.78, 57.60, .73",
            "hard_sample": "1.82, 56.30, .58",
            "categorical_enum": "1.69, 58.44, 2.07",
            "categorical_sample": "1.75, 57.52, 2.44",
        },
        source="NLL, accuracy, entropy of the attention, on VQA-v2",
        more=(Column("ECE", "test_ece/mean"), *_LOOKING, *_COST),
    ),
    "dn": Block(
        title="Attention that does not Explain Away, Table 1: several views",
        text=(
            "Three views of every scene, each of which misses every digit with probability .3; the regions of the "
            "first one attend to those of each other. Share: of doubly normalised attention in hybrid attention, which "
            "begins at .5."
        ),
        rows={
            name: {"model": "multi_view", "guide": "soft", "normalizer": name}
            for name in ("softmax", "doubly_normalized", "hybrid")
        },
        columns=(ACCURACY, NLL),
        paper={"softmax": "69.14 / 69.50", "doubly_normalized": "69.70 / 70.01"},
        source="accuracy test-dev / test-standard, on VQA-v2",
        more=(
            Column("ECE", "test_ece/mean"),
            Column("share, second view", "hybrid_view.1"),
            Column("share, third view", "hybrid_view.2"),
            *_COST,
        ),
    ),
}
