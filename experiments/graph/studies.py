"""Tables and studies on graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from experiments.convergence import convergence
from experiments.files import reading
from experiments.graph.task import GraphTask, chosen_graph, perturbed, prediction_scores
from experiments.report.report import Part
from experiments.report.statistics import Column, beside, paired_difference
from experiments.study import Block, Finished, Search, Seed, Study, curves, run_search, run_study
from guides.rows import LEGEND, ROWS, rows

TASK = GraphTask()
ABOUT = "graphs: node classification"
CITATIONS = {"cora": {"dataset": "cora"}, "citeseer": {"dataset": "citeseer"}}
ACCURACY = Column("accuracy %", "test_mean_accuracy", 2, 100, better="higher")
AUC = Column("ROC AUC %", "test_mean_roc_auc", 2, 100, better="higher")
QUALITY = (
    Column("validation accuracy %", "val_accuracy", 2, 100, better="higher"),
    Column("validation NLL", "val_loss", 2, better="lower"),
)

# The logarithm of a Weibull variable of concentration k has standard deviation 1.28 / k: .64 and .13.
_WIDE, _NARROW = ({"scale": 0.5}, {"scale": 0.1}), ({"concentration": 2.0}, {"concentration": 10.0})
GRID: dict[str, tuple[dict[str, float], ...]] = {
    "soft": ({},), "no KL": _NARROW, "LF": _WIDE, "LC": _WIDE, "WF": _NARROW, "WC": _NARROW
}  # fmt: skip
# The best settings by mean validation accuracy over three seeds (ties: by loss), on Cora:
_CORA = {row: settings[0] for row, settings in GRID.items()}
# The best settings on Chameleon (filtered), and on Texas.
_CHAMELEON = {"LF": _WIDE[0], "LC": _WIDE[1], "WF": _NARROW[1], "WC": _NARROW[1]}
_TEXAS = _CHAMELEON | {"WC": _NARROW[0]}


def _scores(kind: str) -> list[Column]:
    return [
        Column("NLL", f"test_{kind}_nll"),
        Column("ECE", f"test_{kind}_ece"),
        Column("Brier", f"test_{kind}_brier"),
        Column("T", f"{kind}_temperature", 2),
        Column("NLL, scaled", f"test_{kind}_scaled_nll"),
        Column("ECE, scaled", f"test_{kind}_scaled_ece"),
        Column("Brier, scaled", f"test_{kind}_scaled_brier"),
        Column("AURC", f"test_{kind}_aurc"),
    ]


def _sampled(kind: str, noise: str) -> Block:
    return Block(
        f"Probabilities averaged over {{config.num_samples}} samples of {noise}",
        "PAvPU by paired t-tests on the logits of these samples; it depends strongly on their number.",
        [
            Column("accuracy %", f"test_{kind}_accuracy", 2, 100),
            *(column for column in _scores(kind) if "Brier" not in column.name),
            Column("mutual information", f"test_{kind}_mutual_information", 4),
            *(Column(f"PAvPU .{level}", f"test_{kind}_pavpu_{level}", 1, 100) for level in ("01", "05", "10")),
        ],
    )


CONFIDENCE = Block(
    "Confidence before and after temperature scaling",
    "Attention at its posterior mean, no dropout. The temperature T is fitted to the validation nodes of the same run; "
    "below 1 the network was not confident enough.",
    [ACCURACY, AUC, *_scores("mean")],
)
SAMPLED = (
    _sampled("attention", "the attention alone"),
    _sampled("mc_dropout", "dropout alone (attention at its posterior mean)"),
    _sampled("both", "attention and dropout"),
)
ATTENTION = Block(
    "What the attention does",
    "With uniform attention in place of the learned one, in the same networks; entropy of the mean attention, and "
    "attention to neighbors of other classes, relative to uniform attention; shares of the variance of probabilities.",
    [
        ACCURACY,
        Column("accuracy %, uniform", "uniform_accuracy", 2, 100),
        AUC,
        Column("ROC AUC %, uniform", "uniform_roc_auc", 2, 100),
        Column("relative entropy", "attention_entropy", 4),
        Column("attention to other classes", "other_class_attention"),
        Column("variance of attention noise", "variance_share_attention", 4),
        Column("of dropout", "variance_share_dropout", 4),
        Column("of both together", "variance_share_interaction", 4),
    ],
)
TRAINING = Block(
    "Training",
    "Median time of a training step on one thread, with as many runs at a time as cores.",
    [
        Column("epochs", "epochs", 0),
        Column("best epoch", "best_epoch", 0),
        *QUALITY[:1],
        Column("validation ROC AUC %", "val_roc_auc", 2, 100),
        Column("KL", "kl", 0),
        Column("ms/step", "step_ms", 1),
    ],
)
HYBRID = Block(
    "Mixing weight of hybrid attention",
    "Share of doubly normalized attention at the best epoch, mean over heads; training begins with .5.",
    [Column("first layer", "hybrid_layers.0"), Column("second layer", "hybrid_layers.1")],
)


def ensemble(finished: Finished) -> Iterator[Part]:
    """Yield the scores of the mean class probabilities of all seeds of a row, at the posterior mean of the attention.

    One temperature is fitted for the mixture on the validation nodes.

    Source: Lakshminarayanan et al. (2017), Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles.
    """
    text = "Mean probability of all runs of a row, one temperature for the mixture. A row is one ensemble: no spread."
    for level in finished.study.levels:
        score_rows = []
        for row in finished.study.rows:
            configs = [finished.configs[row, level, seed] for seed in finished.seeds]
            members = []
            for config in configs:
                path = config.out / "predictions.npz"
                with reading(path, "the logits of a run", "run it again with --overwrite"), np.load(path) as arrays:
                    members.append(torch.from_numpy(arrays["logits"]))
            metrics = [prediction_scores("mean", torch.stack(members), perturbed(chosen_graph(configs[0]), configs[0]))]
            score_rows.append(
                {"attention": row, **{column.name: column.cell(metrics) for column in (ACCURACY, *_scores("mean"))}}
            )
        yield Part(
            f"Deep ensemble of the {len(finished.seeds)} seeds", f"{text}\n\n{level}:", score_rows, terminal=False
        )


BAM1 = Study(
    name="bam1",
    title="Bayesian Attention Modules, Table 1: node classification on citation graphs",
    about=ABOUT,
    text=(
        f"{LEGEND} GAT with 8 heads of width 8 and one output head, public split, row-normalized features, as the "
        f"original: Adam with learning rate .005 and L2 penalty 5e-4, dropout .6, up to {{config.max_epochs}} epochs, "
        f"patience 100 on validation accuracy and loss. KL weight .001, in an ELBO summed over nodes and edges; "
        f"annealed: along a sigmoid, from .7 % of it, in 200 steps. Of two settings a row the better one on Cora's "
        f"validation nodes is used on both graphs (`python -m experiments.graph search bam1 --levels '[\"cora\"]'`): "
        f"scale .5, concentration 2."
    ),
    task=TASK,
    rows=rows(GRID, _CORA) | {"WC, annealed": {**ROWS["WC"], **_CORA["WC"], "kl_schedule": "sigmoid", "kl_steps": 200}},
    heads=("attention", ""),
    levels=CITATIONS,
    options={"max_epochs": 2000, "kl_scale": "total", "kl_weight": 1e-3},
    seeds=10,
    columns=(ACCURACY,),
    paper={
        "soft": {"cora": "83.00", "citeseer": "72.50"},
        "no KL": {"cora": "83.39", "citeseer": "72.91"},
        "LF": {"cora": "83.24", "citeseer": "72.86"},
        "LC": {"cora": "83.34", "citeseer": "73.04"},
        "WF": {"cora": "83.48", "citeseer": "73.18"},
        "WC": {"cora": "83.81", "citeseer": "73.52"},
    },
    parts=(
        partial(convergence, metric="val_accuracy", name="validation accuracy", better="higher"),
        convergence,
        ensemble,
        CONFIDENCE,
        *SAMPLED,
        ATTENTION,
        TRAINING,
    ),
)
NORMALIZERS = replace(
    BAM1,
    name="normalizers",
    title="Attention that does not Explain Away: doubly normalized and hybrid attention on citation graphs",
    text=(
        "doubly: weights normalized over the nodes that attend to a neighbor first, then over the neighbors; "
        "hybrid: a trained mixture of that and the softmax, from .5, one a head. WC: Weibull posterior, contextual "
        "prior; settings are those of the table of Bayesian Attention Modules. The paper has no graphs. The contextual "
        "prior prefers some neighbors whichever node attends, which the normalization over nodes takes back in part."
    ),
    rows={
        f"{row}{suffix}": {**BAM1.rows[row], "normalizer": name}
        for row in ("soft", "WC")
        for suffix, name in (("", "softmax"), (" doubly", "doubly_normalized"), (" hybrid", "hybrid"))
    },
    baselines={"WC doubly": "WC", "WC hybrid": "WC"},
    seeds=5,
    paper={},
    parts=(*BAM1.parts, HYBRID),
)

_BY_ACCURACY = ("actor", "texas", "chameleon_filtered", "squirrel_filtered")
HETEROPHILOUS = replace(
    BAM1,
    name="heterophilous",
    title="Graphs whose neighbors disagree: kinds of attention on heterophilous graphs",
    text=(
        f"{LEGEND} doubly: weights normalized over the nodes that attend to a neighbor first, then over the "
        "neighbors; hybrid: a trained mixture of that and the softmax. Residual network of Platonov et al. (2023), 8 "
        "heads of width 8 (theirs has a width of 512), Adam with learning rate .003, dropout .2, at most 300 epochs, "
        "patience 100; the network is that of the epoch with the best validation accuracy (ROC AUC on Minesweeper). KL "
        "weight 1 on the mean KL of an attention weight. Scale and concentration are the better of two on the "
        "validation nodes of three splits of Chameleon (`python -m experiments.graph search heterophilous --levels "
        "'[\"chameleon_filtered\"]'`), those of Chameleon itself of a search on Texas, as nodes that validate in one "
        "split test in another. Each seed has its fixed split, which all rows share. The splits of a graph have nodes "
        "in common, so that the intervals are somewhat too narrow."
    ),
    rows={
        **rows(("soft", "LF", "LC", "WF", "WC"), _CHAMELEON),
        "doubly": {**ROWS["soft"], "normalizer": "doubly_normalized"},
        "hybrid": {**ROWS["soft"], "normalizer": "hybrid"},
    },
    levels={
        **{name: {"dataset": name} for name in _BY_ACCURACY},
        "chameleon_filtered": {"dataset": "chameleon_filtered", **_TEXAS},
        "minesweeper": {"dataset": "minesweeper", "layers": 5},
    },
    columns=(replace(ACCURACY, levels=_BY_ACCURACY), replace(AUC, levels=("minesweeper",))),
    options={
        "split_seed": Seed.SEED,
        "num_samples": 10,
        "architecture": "residual_gat",
        "monitor": "metric",
        "learning_rate": 0.003,
        "weight_decay": 0.0,
        "dropout": 0.2,
        "max_epochs": 300,
        "kl_scale": "edge",
        "kl_weight": 1.0,
    },
    paper={},
    parts=(CONFIDENCE, *SAMPLED, ATTENTION, TRAINING),
)


def _difficulty(
    name: str, title: str, axis: str, text: str, option: str, levels: Sequence[float], of: Study, *more: Column
) -> Study:
    return replace(
        of,
        name=name,
        title=title,
        text=f"{text} {LEGEND} Settings as in the table {of.name}, not searched again. Attention at its mean.",
        rows={row: of.rows[row] for row in ("soft", "WC")},
        levels={f"{level:g}": {option: level} for level in levels},
        heads=(of.heads[0], axis),
        seeds=3,
        columns=(
            *of.columns,
            *beside(
                *(column for column in _scores("mean") if column.name in ("ECE", "ECE, scaled", "NLL, scaled")), *more
            ),
        ),
        paper={},
        parts=(curves,),
    )


_FEWER = (
    "Fewer labels", "labels per class",
    "This number of training labels of each class, or all of a class that has fewer, drawn at random by the run's "
    "seed.", "labels_per_class", (2, 5, 10, 20),
)  # fmt: skip
_EDGES = (
    "Noisy edges", "random edges added, per edge",
    "Random edges are added, as a fraction of the edges of the graph. Noise attention: attention paid to added edges, "
    "divided by what uniform attention would pay them (1 = not ignored at all).", "edge_noise", (0.0, 1.0, 2.0),
)  # fmt: skip
_FEATURES = (
    "Noisy features", "fraction of features moved",
    "This fraction of the non-zero features of all nodes moves to other random columns of their rows.",
    "feature_noise", (0.0, 0.3, 0.6),
)  # fmt: skip
_NOISE_ATTENTION = Column("noise attention", "noise_edge_attention")
_CORA_ALONE = replace(BAM1, options={**BAM1.options, "dataset": "cora"})
_MINESWEEPER = replace(
    HETEROPHILOUS, options={**HETEROPHILOUS.options, **HETEROPHILOUS.levels["minesweeper"]}, columns=(AUC,)
)


def _uniform(finished: Finished) -> Iterator[Part]:
    """Yield the accuracy with uniform attention minus that with learned attention, in the same networks."""
    learned, uniform = ATTENTION.columns[:2]
    difference_rows = [
        {"graph": level, "attention": row}
        | {"uniform minus learned": paired_difference(uniform.values(runs), learned.values(runs))}
        for level in finished.study.levels
        for row in finished.rows
        for runs in [finished.runs(row, level)]
    ]
    yield Part("What the learned attention is worth", "", difference_rows, labels=2)


STUDIES = {
    study.name: study
    for study in (
        BAM1,
        NORMALIZERS,
        HETEROPHILOUS,
        _difficulty("label_rate-cora", *_FEWER, _CORA_ALONE),
        _difficulty("label_rate-minesweeper", *_FEWER, _MINESWEEPER),
        _difficulty("edge_noise-cora", *_EDGES, _CORA_ALONE, _NOISE_ATTENTION),
        _difficulty("edge_noise-minesweeper", *_EDGES, _MINESWEEPER, _NOISE_ATTENTION),
        _difficulty("feature_noise-cora", *_FEATURES, _CORA_ALONE),
        replace(
            NORMALIZERS,
            name="uniformity",
            title="How far learned attention is from uniform",
            text=LEGEND,
            rows={row: BAM1.rows[row] for row in ("soft", "WC")},
            baselines={},
            parts=(_uniform, ATTENTION),
        ),
    )
}

table = partial(run_study, STUDIES)
search = partial(
    run_search,
    {
        "bam1": Search(BAM1, GRID, QUALITY),
        "heterophilous": Search(HETEROPHILOUS, {row: GRID[row] for row in GRID if row != "no KL"}, QUALITY),
    },
)
