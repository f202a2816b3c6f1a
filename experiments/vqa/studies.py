"""Tables and studies on questions about photographs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.convergence import convergence
from experiments.files import user_errors
from experiments.normalizer_report import RECEIVED, pictures
from experiments.options import paper_sizes
from experiments.report.report import Claim, Part, claims_part
from experiments.report.statistics import Column, Estimate, Row, Runs, beside, paired_difference
from experiments.study import Block, Finished, Search, Study, curves, run_search, run_study
from experiments.vqa.config import VQAConfig
from experiments.vqa.model import Answered, load_questions, load_words
from experiments.vqa.task import UNCERTAINTIES, VQATask, accuracies
from guides.rows import EVIDENCE, LEGEND, rows
from pyro_attention.analysis import decompose_uncertainty

TASK = VQATask()
ABOUT = "pictures: questions about pictures"
RESAMPLES = 300
NOISE = {"clean": "", "noise .5": "/noise_0.5"}  # on the regions of the test, with the end of the metrics' names
ACCURACY = Column("accuracy %", "test_accuracy/mean", 2, 100, better="higher")
NLL = Column("NLL", "test_nll/mean", better="lower")
ECE = Column("ECE", "test_ece/mean")
LOOKING = (
    Column("mass on relevant %", "relevant_mass", 1, 100),
    Column("uniform %", "uniform_mass", 1, 100, spread=False),
    Column("entropy of attention", "attention_entropy"),
)
MS = Column("ms/step", "step_ms", 0)
QUALITY = (
    Column("validation loss", "val_loss", 4, better="lower"),
    Column("validation accuracy %", "val_accuracy", 2, 100, better="higher"),
)

_TRIED = ((1e-3, 0.1), (1e-4, 0.1), (1e-5, 0.1), (1e-5, 0.01))
GRID = {
    "LC": tuple({"kl_weight": weight, "scale": scale} for weight, scale in _TRIED),
    "WC": tuple({"kl_weight": weight, "concentration": 1 / scale} for weight, scale in _TRIED),
}
# The best of them on validation questions about digits, and for fixed priors too.
_L, _W = GRID["LC"][2], GRID["WC"][3]
POSTERIORS = rows(("soft", "LF", "LC", "WF", "WC", "evidence"), {"LF": _L, "LC": _L, "WF": _W, "WC": _W})
NOISY = {f"{row}, in noise": {**POSTERIORS[row], "feature_noise": 0.5} for row in ("soft", "WC")}
_WIDE = {**POSTERIORS["WC"], **GRID["WC"][2]}
WIDE = {"WC, 10": _WIDE, "WC, 10, in noise": {**_WIDE, "feature_noise": 0.5}}
BLIND = {"question only": {**POSTERIORS["soft"], "blind": True}}


def _in_noise(column: Column, noise: str) -> Column:
    """Return the column of the same metric with noise on the regions."""
    return replace(column, name=f"{column.name}, {noise}", metric=column.metric + NOISE[noise])


def _scores(kind: str, title: str) -> Iterator[Block]:
    """Yield the scores of a kind of prediction, without noise on the regions and with it."""
    plain = {"NLL": "nll", "ECE": "ece", "NLL, scaled": "scaled_nll", "ECE, scaled": "scaled_ece"}
    for noise, suffix in NOISE.items():
        ending = f"/{kind}{suffix}"
        columns = [
            Column("accuracy %", f"test_accuracy{ending}", 2, 100),
            *(Column(name, f"test_{metric}{ending}") for name, metric in plain.items()),
            *(Column(f"PAvPU .{level}", f"test_pavpu_{level}{ending}", 1, 100) for level in ("01", "05", "10")),
            *(Column(f"AUROC {name.replace('_', ' ')}", f"test_auroc_{name}{ending}") for name in UNCERTAINTIES),
        ]
        yield Block(f"{title}; {noise}", "", columns)


BY_QUESTION = Block(
    "Accuracy % by kind of question",
    "Majority: the most frequent training answer, without a photograph. Form: the most frequent training answer to "
    "questions that begin with the same two words.",
    [
        Column("all", "test_accuracy/mean", 1, 100),
        *(
            Column(kind, f"test_accuracy/mean/{kind}", 1, 100)
            for kind in ("where", "count", "exists", "which", "chain", "shape", "color", "object")
        ),
        Column("majority", "majority_accuracy", 1, 100, spread=False),
        Column("form", "form_accuracy", 1, 100, spread=False),
    ],
)
TRAINING = Block(
    "Where it looks, and what training took",
    "Mass: share of the attention that the answer is read from on the relevant regions, and the share of uniform "
    "attention there.",
    [Column("validation %", "val_accuracy", 2, 100), *LOOKING, ECE, Column("epochs", "epochs", 0), MS],
)
SHARES = Block(
    "Mixing weight of hybrid attention",
    "Share of doubly normalized attention at the best epoch; training begins with .5.",
    [Column("second view", "hybrid_view.1"), Column("third view", "hybrid_view.2")],
)
BY_REGION = Block(
    "Regions that are explained away",
    "A region's mass is the sum of the weights that all regions of the first view give to it, at the mean of the "
    "attention; a region with less than 1e-8 is explained away.",
    RECEIVED,
)

_TRAINED = (
    "Width {config.hidden}, depth {config.layers}, {config.heads} heads, dropout {config.dropout:g}, Adam with "
    "learning rate {config.learning_rate:g}, halved on a plateau, batches of {config.batch_size}, at most "
    "{config.max_epochs} epochs, patience {config.patience} on the validation loss. "
)
_ELSEWHERE = "The paper's numbers are of VQA-v2 and of another network: compare the order of the rows alone"
_TRAINED += _ELSEWHERE
_VIEWED = _TRAINED.replace("depth {config.layers}, {config.heads} heads, ", "")  # multi_view has neither


def _claims(finished: Finished) -> list[Part]:
    """Return the part with the claims of a paper; a single seed has no intervals, so it has no claims."""
    claims = list(_checked(finished)) if len(finished.seeds) > 1 else []
    return [claims_part("Claims of the paper", claims)] if claims else []


def _checked(finished: Finished) -> Iterator[Claim]:
    """Yield the claims of the papers, as far as the study has their rows.

    Source: Fan et al. (2020), 4.2 and Table 2; Deng et al. (2018), Table 1; Ding et al. (2020), 6.1.
    """
    shown, runs = finished.rows, finished.runs
    if "WC" in shown:
        yield from _claims_of_noise(runs("WC"), runs("soft"))
    # these differences count in the table, where they stand first
    if "marginal" in shown:
        less = {"marginal - soft": replace(NLL, better=None).difference(runs("marginal"), runs("soft"), "soft")}
        text = "the marginal likelihood has a smaller NLL than soft attention"
        yield Claim(text=text, differences=less, expected="below")
    if (row := "doubly_normalized") in shown:
        more = {f"{row} - softmax": replace(ACCURACY, better=None).difference(runs(row), runs("softmax"), "softmax")}
        yield Claim(text="doubly normalized attention between views is more accurate", differences=more, percent=True)
    if "hybrid" in shown:
        shares = {column.name: column.values(runs("hybrid")) for column in SHARES.columns}
        moved = {f"{name} - .5": paired_difference(values, [0.5] * len(values)) for name, values in shares.items()}
        text = "hybrid attention moves from its beginning, .5, towards doubly normalized attention, 1"
        yield Claim(text=text, differences=moved)


def _claims_of_noise(random: Runs, soft: Runs) -> Iterator[Claim]:
    """Yield the claims on noise that were measured: with other --test-noise, or a single sample, there are fewer.

    Args:
        random: Metrics of WC, one entry a seed.
        soft: Metrics of soft attention.
    """
    change = Column("accuracy %, noise .5 minus clean", "change", 2, 100, better="higher")
    clean, noisy = (_in_noise(ACCURACY, noise).metric for noise in NOISE)
    losses, of_soft = (
        [{"change": metrics[noisy] - metrics[clean]} for metrics in runs if metrics.keys() >= {clean, noisy}]
        for runs in (random, soft)
    )
    if losses and of_soft:
        less = {"WC - soft": change.difference(losses, of_soft, "soft")}
        yield Claim(text="WC loses less accuracy than soft to noise on the regions", percent=True, differences=less)
    for noise, suffix in NOISE.items():
        # the noise of soft attention is dropout alone; that of WC is both, as in the paper
        both, dropout = (
            Column(f"PAvPU %, {noise}", f"test_pavpu_05/{kind}{suffix}", 2, 100, better="higher")
            for kind in ("both", "mc_dropout")
        )
        if both.paired(random, soft, dropout):
            larger = {"WC - soft": both.difference(random, soft, "soft", other=dropout)}
            text = f"WC has a larger PAvPU (level .05) than soft with dropout, {noise}"
            yield Claim(text=text, percent=True, differences=larger)


def _mcan(dataset: str, *, legend: str = EVIDENCE, **options: Any) -> Study:
    return Study(
        name=f"vqa-{dataset}",
        title=f"Bayesian Attention Modules, Table 2: MCAN on {dataset}",
        about=ABOUT,
        text=f"{LEGEND} {legend} Every attention of MCAN is random. Noise is Gaussian, on the regions, in units of "
        "the features' standard deviation; rows named 'in noise' are trained with noise of .5. Attention at its "
        "posterior mean, no dropout. Question only: soft, trained and tested with all regions blank. "
        f"{_TRAINED}: accuracy clean / noisy; PAvPU clean / noisy. KL weight 1e-5, scale .1, concentration 100: chosen "
        "on validation questions about digits (search vqa-digits), contextual priors for fixed ones too.",
        task=TASK,
        rows=POSTERIORS | NOISY | BLIND,
        options={"dataset": dataset, "max_epochs": 8, **options},
        columns=[*(_in_noise(ACCURACY, noise) for noise in NOISE), _in_noise(NLL, "clean")],
        baselines={"WC, in noise": "soft, in noise"},
        paper={
            "soft": "66.95 / 61.25; 70.04 / 65.34",
            "LF": "66.89 / 61.43; 69.92 / 65.48",
            "LC": "66.93 / 61.58; 70.14 / 65.60",
            "WF": "66.93 / 61.60; 70.09 / 65.62",
            "WC": "67.02 / 62.89; 71.21 / 66.75",
        },
        parts=(
            _claims,
            convergence,
            TRAINING,
            BY_QUESTION,
            *_scores("mean", "Confidence at the posterior mean, no dropout, before and after temperature scaling"),
            *_scores("attention", "Samples of the attention alone"),
            *_scores("mc_dropout", "Samples of dropout alone, attention at its posterior mean"),
            *_scores("both", "Samples of attention and dropout"),
        ),
    )


def _alignments(mcan: Study) -> Study:
    return replace(
        mcan,
        name=mcan.name.replace("vqa", "vqa-alignments", 1),
        title=f"Latent Alignment and Variational Attention, Tables 1 and 3: one alignment, {mcan.options['dataset']}",
        text="A question looks at one region. Alignments are summed out at test time, so NLL is exact; soft attention "
        "has no alignment. The mass is that of the weights that predict, which do not depend on the answer. The KL of "
        f"an alignment has weight 1. {_TRAINED}: NLL, accuracy, entropy of the attention.",
        rows={
            guide: {"model": "bottom_up", "guide": guide}
            for guide in ("soft", "marginal", "hard_enum", "hard_sample", "categorical_enum", "categorical_sample")
        },
        columns=(NLL, ACCURACY),
        baselines={},
        paper={
            "soft": "1.76, 58.93, 2.70",
            "marginal": "1.69, 60.33, 2.66",
            "hard_enum": "1.78, 57.60, .73",
            "hard_sample": "1.82, 56.30, .58",
            "categorical_enum": "1.69, 58.44, 2.07",
            "categorical_sample": "1.75, 57.52, 2.44",
        },
        parts=(_claims, convergence, TRAINING, BY_QUESTION),
    )


_SHORT = {
    "digits": _mcan("digits"),
    "easy_vqa": _mcan("easy_vqa", test_questions=500, max_epochs=6),
    "daquar": _mcan("daquar", encoder="mobilenet_v2", test_questions=2000, hidden=128, dropout=0.3),
}
_DIGITS = _SHORT["digits"]
MCAN = _SHORT | {
    # without the evidence: 24 epochs of it would take half of the time of the table
    "digits": replace(
        _mcan("digits", legend="WC, 10 has concentration 10.", max_epochs=24),
        rows={name: row for name, row in POSTERIORS.items() if name != "evidence"} | NOISY | WIDE | BLIND,
        baselines={**_DIGITS.baselines, "WC, 10, in noise": "soft, in noise"},
        seeds=5,
    ),
}
ALIGNMENTS = {name: _alignments(mcan) for name, mcan in _SHORT.items()}
ALIGNMENTS["digits"] = replace(ALIGNMENTS["digits"], options={**_DIGITS.options, "max_epochs": 20}, seeds=10)
VIEWS = replace(
    ALIGNMENTS["digits"],
    options={**_DIGITS.options, "max_epochs": 64},
    seeds=10,
    name="vqa-views-digits",
    title="Attention that does not Explain Away, Table 1: several views of a scene",
    text="Three views of every scene. A view misses a digit with probability .3. The regions of the first view attend "
    f"to those of the other two. {_VIEWED}: accuracy test-dev / test-standard.",
    rows={
        name: {"model": "multi_view", "guide": "soft", "normalizer": name}
        for name in ("softmax", "doubly_normalized", "hybrid")
    },
    columns=(ACCURACY, NLL),
    paper={"softmax": "69.14 / 69.50", "doubly_normalized": "69.70 / 70.01"},
    parts=(_claims, convergence, SHARES, BY_REGION, pictures, TRAINING, BY_QUESTION),
)

VIEW_HEADS = replace(
    VIEWS,
    name="vqa-views-heads-digits",
    title="Attention that does not Explain Away, Tables 1 and 4: no attention, and heads of the attention to a scene",
    text="Three views of every scene. No attention: the question attends to the regions of all views side by side. "
    "First view: to those of the first view alone. Other rows: the regions of the first view attend to those of the "
    f"other two, with one head or several. {_VIEWED}: accuracy test-dev / test-standard; on its validation part.",
    rows={
        "no attention": {"model": "multi_view", "guide": "soft", "merge": "concatenation"},
        "first view": {"model": "multi_view", "guide": "soft", "merge": "first"},
        "softmax": VIEWS.rows["softmax"],
        "doubly_normalized": VIEWS.rows["doubly_normalized"],
        **{
            f"doubly_normalized, {heads} heads": {**VIEWS.rows["doubly_normalized"], "view_heads": heads}
            for heads in (2, 4, 8)
        },
    },
    paper={
        "no attention": "68.79 / 69.22; 68.26",
        "first view": "66.91",
        "softmax": "69.14 / 69.50; 68.34",
        "doubly_normalized": "69.70 / 70.01; 68.99",
    },
    options={**VIEWS.options, "max_epochs": 24},
    seeds=3,
)


# The tables of the papers on VQA v2 with the published sizes; a user has to download the data.


def _published(study: Study, sizes: str) -> Study:
    options = {**study.options, "max_epochs": 24, "test_questions": 10_000, **paper_sizes(VQAConfig, sizes)}
    text = study.text.replace(
        _ELSEWHERE, "The sizes are the published ones. Tested on questions of the validation photographs. The paper"
    )
    return replace(
        study,
        name=study.name.replace("digits", "vqa_v2"),
        title=study.title.replace("digits", "VQA v2").replace("a scene", "a photograph"),
        text=text,
        options=options,
        seeds=3,
    )


PUBLISHED = (
    _published(_DIGITS, "mcan"),
    _published(ALIGNMENTS["digits"], "bottom_up"),
    replace(
        _published(VIEWS, "multi_view"),
        text="Every photograph has the regions of three object detectors (features/1, features/2, features/3). The "
        "regions of the first detector attend to those of the other two. "
        f"{_VIEWED}: accuracy test-dev / test-standard.".replace(
            _ELSEWHERE, "The sizes are the published ones, as far as they are known. The paper"
        ),
    ),
    replace(
        _published(VIEW_HEADS, "multi_view"),
        title=VIEW_HEADS.title.replace("a scene", "a photograph"),
        text=VIEW_HEADS.text.replace("every scene", "every photograph, the regions of three object detectors").replace(
            _ELSEWHERE, "The sizes are the published ones, as far as they are known. The paper"
        ),
    ),
)


def bootstrap(judged: Sequence[tuple[Tensor, Tensor]]) -> Estimate | str:
    """Return the mean area under the ROC curve over seeds with its bootstrap interval over questions; "-" without any.

    ``judged`` has, for every seed, the uncertainty of the questions and whether the answers are wrong.
    """
    judged = [(values, wrong) for values, wrong in judged if 0 < wrong.sum() < len(wrong)]
    if not judged:
        return "-"
    generator, count, means = torch.Generator().manual_seed(0), len(judged[0][0]), list[float]()
    for number in range(RESAMPLES + 1):
        indices = torch.randint(count, (count,), generator=generator) if number else torch.arange(count)
        resampled = [(values[indices], wrong[indices]) for values, wrong in judged]
        areas = [float(roc_auc_score(wrong, values)) for values, wrong in resampled if 0 < wrong.sum() < count]
        if areas:  # a sample of few questions may have right answers alone
            means.append(sum(areas) / len(areas))
    low, high = torch.tensor(means[1:]).quantile(torch.tensor([0.025, 0.975])).tolist()
    return Estimate(means[0], digits=3, low=low, high=high)


_NAMES = {"mc_dropout": "dropout", "attention": "attention", "both": "attention and dropout"}


def _uncertainty(finished: Finished) -> list[Part]:
    """Return the parts on how well uncertainty separates wrong from right answers after training on all."""
    configs = [config for (_, level, _), config in finished.configs.items() if level == "1"]
    if not configs or 0 not in configs[0].test_noise:  # predictions are kept of regions without noise
        return []
    wrong, absent = list[Row](), list[Row]()
    for row in finished.rows:
        for predicted, judged in _judged(finished, row).items():
            wrong.append({"row": f"{row}: {predicted}"})
            wrong[-1] |= {name.replace("_", " "): bootstrap(judged[name]) for name in UNCERTAINTIES}
        for kind, noise in _NAMES.items():
            columns = [Column(name.replace("_", " "), f"test_absent_auroc_{name}/{kind}") for name in UNCERTAINTIES]
            if columns[0].values(finished.runs(row, "1")):
                absent.append({"row": f"{row}: {noise}"})
                absent[-1] |= {column.name: finished.cell(row, column, "1") for column in columns}
    text = (
        f"Area under the ROC curve, mean over seeds, with the 95 % interval of {RESAMPLES} bootstrap samples of the "
        "test questions, which says nothing about other seeds. An ensemble is the mean probability of all seeds, "
        "without dropout. Trained on all questions."
    )
    parts = [Part("Does uncertainty tell wrong answers from right ones?", text, wrong)]
    text = (
        "Area under the ROC curve for questions whose answer is not in the scene, against those of the same form that "
        "have one. None of them was trained on."
    )
    return [*parts, Part("Questions about what is not in the scene", text, absent)] if absent else parts


def _judged(finished: Finished, row: str) -> dict[str, defaultdict[str, list[tuple[Tensor, Tensor]]]]:
    """Return uncertainties and wrong answers of every seed, by kind of prediction and of uncertainty.

    The ensemble has a single entry, of the mean probability of all seeds.
    """
    judgments: dict[str, defaultdict[str, list[tuple[Tensor, Tensor]]]] = {}
    members, configs = list[Tensor](), [finished.configs[row, "1", seed] for seed in finished.seeds]
    with user_errors(ValueError, OSError):
        questions = load_questions(configs[0])["test"]
        for config in configs:
            # the runs on all questions choose from the same answers
            data = Answered(questions, load_words(config.out))
            with np.load(config.out / "predictions.npz") as arrays:
                predictions = {name: torch.from_numpy(arrays[name]) for name in arrays}
            members.append(predictions["mean"])
            for kind, noise in _NAMES.items():
                for name in [name for name in UNCERTAINTIES if f"{name}_{kind}" in predictions]:
                    wrong = accuracies(predictions[kind], data) < 0.5
                    judgments.setdefault(noise, defaultdict(list))[name].append((predictions[f"{name}_{kind}"], wrong))
    if len(members) > 1:
        samples = torch.stack(members)
        parts, wrong = decompose_uncertainty(samples), accuracies(samples.mean(0), data) < 0.5
        judged = judgments.setdefault(f"ensemble of {len(members)} seeds", defaultdict(list))
        judged["entropy"].append((parts.total, wrong))
        judged["mutual_information"].append((parts.mutual_information, wrong))
    return judgments


SHARES_OF_QUESTIONS = replace(
    _DIGITS,
    name="vqa-studies-digits",
    title="Fewer questions, and uncertainty: digits",
    text=f"{LEGEND} MCAN, trained on shares of the training questions, which the seed draws. Attention at its "
    "posterior mean. Settings as in the table vqa-digits, not searched again.",
    rows={row: POSTERIORS[row] for row in ("soft", "WC")},
    options={**_DIGITS.options, "test_noise": (0.0,)},
    levels={f"{share:g}": {"train_share": share} for share in (0.05, 0.1, 0.25, 1.0)},
    heads=("row", "share of the questions"),
    columns=(
        *(ACCURACY, NLL),
        *beside(
            ECE, Column("ECE, scaled", "test_scaled_ece/mean"), Column("questions", "train_questions", 0, spread=False)
        ),
    ),
    baselines={},
    paper={},
    parts=(curves, _uncertainty),
)

WIDTH = replace(
    _DIGITS,
    name="vqa-evidence-digits",
    title="A width that the evidence learns: MCAN on digits, trained with noise",
    rows={row: POSTERIORS[row] for row in ("soft", "evidence")},
    options={**_DIGITS.options, "feature_noise": 0.5, "num_samples": 5},
    baselines={},
    paper={},
)


_ALL = (*MCAN.values(), *ALIGNMENTS.values(), VIEWS, VIEW_HEADS, SHARES_OF_QUESTIONS, WIDTH, *PUBLISHED)
STUDIES = {study.name: study for study in _ALL}
table = partial(run_study, STUDIES)
search = partial(run_search, {study.name: Search(study, GRID, QUALITY) for study in _SHORT.values()})
