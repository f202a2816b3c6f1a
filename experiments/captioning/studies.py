"""Studies of captioning: inference schemes on photographs and scenes, and estimators of the KL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import kl_divergence

from experiments.captioning.attention import NOUNS
from experiments.captioning.batches import batches
from experiments.captioning.evaluation import COUNT, DOUBTS, WAYS
from experiments.captioning.task import CaptioningTask, build, load_images, load_trained
from experiments.data.text.batches import Batch, Vocabulary
from experiments.report.report import Part
from experiments.report.statistics import Column, Estimate, Row, beside, summarize
from experiments.sequence.model import AnyTrained
from experiments.study import Block, Finished, First, Search, Study, run_search, run_study
from guides.rows import EVIDENCE, LEGEND, rows
from pyro_attention.posterior.predictive import seeded

ESTIMATORS = ("closed_form", "sampled")
PAIRS = 50  # pairs of draws of the attention, for the noise of gradients
TASK = CaptioningTask()
ABOUT = "pictures: captions"
BLEU = [Column(f"BLEU-{n}", f"test_bleu_{n}", 1, better="higher") for n in range(1, 5)]
SCORES = (
    Column("METEOR", "test_nltk_meteor", 1, better="higher"),
    Column("ROUGE-L", "test_rouge_l", 1, better="higher"),
    Column("CIDEr-D", "test_cider_d", 1, better="higher"),
)
PERPLEXITY = Column("perplexity", "test_ppl", better="lower")
VALIDATION = Column("validation perplexity", "val_ppl", better="lower")
POINTS = Column("points %", "test_pointing", 1, 100, better="higher")
MS = Column("ms/step", "step_ms", 0)
CHANGE = Column("change of attention", "test_attention_change")
PARAMETERS = Column("parameters", "parameters", 0, spread=False)
RANDOM = (
    Column("BLEU-1 of random captions", "floor_bleu_1", 1, spread=False),
    Column("CIDEr-D of random captions", "floor_cider_d", 1, spread=False),
)

_SCORED = (
    "BLEU by sacrebleu's counts, CIDEr-D and ROUGE-L as in coco-caption; METEOR is NLTK-METEOR, if NLTK finds WordNet. "
    "Perplexity of a word piece: alignments are summed out exactly; lognormal and weibull predict by the mean over "
    "{config.num_samples} posterior samples. Random captions: captions of training images, drawn for each test image."
)
_FROM_SOFT = (
    "Soft attention is trained for {first.max_epochs} epochs of one caption an image, with Adam, learning rate "
    "{first.learning_rate:g}, batches of {first.batch_size}, width {first.hidden} and dropout {first.dropout:g}; every "
    "row, soft too, continues from there for {config.max_epochs} at learning rate {config.learning_rate:g}. The "
    "weights of the epoch with the best validation perplexity are used. Beam of {config.beam}."
)


MASS = Block(
    "Where the attention of a noun is",
    "Share of the attention of a noun that is on its class in segmentation maps, which a network has made, in the "
    "first five captions of the test photographs. Uniform: equal weights everywhere; center: all weight in the middle. "
    "Largest: share of the region with the largest weight that has the class. The posterior of hard has seen the noun; "
    "its prior, and the posterior of the other rows, has not.",
    [
        Column("posterior %", "test_map_mass", 1, 100),
        Column("prior %", "test_map_mass_prior", 1, 100),
        Column("uniform %", "test_map_mass_uniform", 1, 100, spread=False),
        Column("center %", "test_map_mass_center", 1, 100, spread=False),
        Column("largest, posterior %", "test_map_point", 1, 100),
        Column("largest, prior %", "test_map_point_prior", 1, 100),
    ],
)
BY_CLASS = Block(
    "The attention of nouns by class",
    "Share of the posterior's attention, and of uniform weights, on the class of a noun, and the number of nouns.",
    [
        Column("all %", "test_map_mass", 1, 100),
        *(
            column
            for kind in NOUNS
            for column in (
                Column(f"{kind} %", f"test_map_mass_{kind}", 1, 100),
                Column(f"{kind}, uniform %", f"test_map_mass_uniform_{kind}", 1, 100, spread=False),
                Column(f"{kind}, nouns", f"test_map_nouns_{kind}", 0, spread=False),
            )
        ),
    ],
)
DOUBT = Block(
    "Are doubtful captions worse",
    "Spearman's rank correlation of the doubt about a caption of beam search with its CIDEr-D, and CIDEr-D of the half "
    "and the quarter of the captions with the least doubt. Doubts are means over word pieces of "
    + "; ".join(f"{name}: {text}" for name, text in DOUBTS.items()),
    [
        Column("CIDEr-D of all", "test_cider_d", 1),
        *(Column(f"rank correlation, {name}", f"test_rank_{name}") for name in DOUBTS),
        *(Column(f"of {n} % by {name}", f"test_cider_d_{name}_{n}", 1) for name in DOUBTS for n in (50, 25)),
    ],
)
DIVERSITY = [
    Block(
        f"{COUNT} captions of a photograph: {way.replace('_', ' ')}",
        f"The captions are {how}. Distinct: share of different words or pairs of words. Self-BLEU: BLEU of each "
        f"caption against the others.",
        [
            Column("distinct words", f"test_distinct_1_{way}"),
            Column("distinct pairs", f"test_distinct_2_{way}"),
            Column("self-BLEU", f"test_self_bleu_{way}", 1),
            Column("CIDEr-D", f"test_set_cider_d_{way}", 1),
        ],
    )
    for way, how in WAYS.items()
]

# the logarithm of a Weibull variable with concentration k has standard deviation 1.28 / k
GRID = {
    "LC": tuple({"kl_weight": kl, "scale": scale} for kl, scale in ((0.01, 0.1), (0.001, 0.1), (0.001, 0.5))),
    "WC": tuple({"kl_weight": kl, "concentration": k} for kl, k in ((0.01, 10.0), (0.001, 10.0), (0.001, 2.5))),
}
_L, _W = GRID["LC"][0], GRID["WC"][0]  # the settings of the best validation perplexity, also for fixed priors
_PHOTOGRAPHS = {"dataset": "flickr8k", "vocabulary": 2000, "dropout": 0.3, "no_repeat": 2}
_WIDE = {"encoder": "mobilenet_v2", "hidden": 256, "embedding": 128, "batch_size": 64, "num_samples": 10}

FLICKR8K = Study(
    name="captioning-flickr8k-mobilenet_v2",
    title="Captions of photographs: flickr8k, mobilenet_v2",
    about=ABOUT,
    text=(
        f"{LEGEND} {EVIDENCE} hard: one region for each word, by the score function. {_FROM_SOFT} Features of a "
        "MobileNetV2 that was trained on ImageNet. Three settings of LC and WC were tried on the validation "
        "photographs (`python -m experiments.captioning search flickr8k`); LF and WF have the best of them, too: KL "
        f"weight .01, scale .1, concentration 10. {_SCORED} Relative entropy: entropy of the mean posterior weights; 1 "
        "is uniform. Paper: BLEU-4 / ROUGE-L / CIDEr of Table 3 of Bayesian Attention Modules, on COCO with regions of "
        "a detector, only to compare the order of the rows."
    ),
    task=TASK,
    rows={
        **rows(("soft",)),
        "hard": {"guide": "hard_sample"},
        **rows(("LC", "LF", "WC", "WF", "evidence"), {"LC": _L, "LF": _L, "WC": _W, "WF": _W}),
    },
    options={
        **_PHOTOGRAPHS,
        **_WIDE,
        "learning_rate": 1e-3,
        "max_epochs": 4,
        "precision": "bf16-mixed",
        "init_from": First({"guide": "soft", "learning_rate": 2e-3, "max_epochs": 40, "patience": 40}),
    },
    columns=(*(BLEU[0], BLEU[3], *SCORES, PERPLEXITY), *beside(Column("relative entropy", "test_relative_entropy"))),
    paper={
        "soft": "32.2 / 54.7 / 104.0",
        "hard": "26.5 / 50.7 / 84.4",
        "LC": "32.7 / 54.8 / 105.0",
        "WC": "32.8 / 54.9 / 104.5",
    },
    parts=(
        Block("Further numbers", "", [*BLEU[1:3], *RANDOM, CHANGE, VALIDATION, MS, PARAMETERS]),
        MASS,
        BY_CLASS,
        DOUBT,
        *DIVERSITY,
    ),
)

SCHEMES = {name: {"guide": name} for name in ("soft", "hard_sample", "hard_enum", "lognormal", "weibull")}
COMPARE = Study(
    name="captioning-digits",
    title="Captioning: digits",
    about=None,
    text=(
        f"{_FROM_SOFT} {_SCORED} Entropy: of the mean weights that predict. Points: share of the digit words of the "
        "generated captions whose largest mean posterior weight is on the digit's own cell; samples: the same for "
        "posterior samples; mass: the mean weight on this cell. The posterior of soft, weibull and lognormal has not "
        "seen the word. The posterior of the hard schemes has, and their prior has not. True: share of captions that "
        "equal a reference."
    ),
    task=TASK,
    rows=SCHEMES,
    heads=("scheme", ""),
    options={
        "max_epochs": 2,
        "init_from": First({"guide": "soft", "learning_rate": 2e-3, "max_epochs": 10, "patience": 10}),
    },
    seeds=2,
    columns=(
        *(BLEU[0], BLEU[3], *SCORES, PERPLEXITY, POINTS),
        *beside(
            *BLEU[1:3],
            *RANDOM,
            Column("true %", "test_true_captions", 1, 100),
            Column("samples %", "test_pointing_samples", 1, 100),
            Column("mass %", "test_pointing_mass", 1, 100),
            Column("prior points %", "test_pointing_prior", 1, 100),
            Column("entropy", "test_entropy"),
            MS,
            PARAMETERS,
        ),
    ),
)
OWN_ENCODER = replace(
    COMPARE,
    name="captioning-flickr8k",
    title="Captioning: flickr8k",
    text=(
        f"{_FROM_SOFT} Features of a small network that was trained on the captions, another one for each seed. "
        f"{_SCORED} Entropy: of the mean weights that predict."
    ),
    rows={row: SCHEMES[row] for row in ("soft", "hard_sample", "lognormal", "weibull")},
    options={
        **COMPARE.options,
        **_PHOTOGRAPHS,
        "num_samples": 5,
        "init_from": First({**COMPARE.first, "max_epochs": 18, "patience": 18}),
    },
    seeds=3,
)


def loss_terms(trained: AnyTrained, batch: Batch) -> dict[str, Tensor]:
    """Compute the terms of the loss per word piece at one draw of the attention.

    Returns:
        ``likelihood``, the negative log likelihood; ``closed_form`` and ``sampled``, both estimates of the unweighted
        KL.
    """
    size, trace = trained.module.observations(batch), trained.guide.run(*trained.module.arguments(batch)).trace
    trace.compute_log_prob(lambda _, site: site["is_observed"])
    terms = {name: torch.zeros(()) for name in ("likelihood", *ESTIMATORS)}
    nodes: Any = trace.nodes
    for site in nodes.values():
        if site["type"] == "sample" and site["is_observed"]:
            terms["likelihood"] = terms["likelihood"] - site["log_prob_sum"] / size
        elif site["type"] == "sample" and not site_is_subsample(site) and site["mask"] is not False:
            q, p, value = site["fn"], site["infer"]["prior"], site["value"]
            estimates = {"closed_form": kl_divergence(q, p), "sampled": q.log_prob(value) - p.log_prob(value)}
            for kl, estimate in estimates.items():
                total = scale_and_mask(estimate, scale=site["scale"], mask=site["mask"]).sum()
                terms[kl] = terms[kl] + total / size
    return terms


def gradient_noise(trained: AnyTrained, batch: Batch, *, kl_weight: float, pairs: int) -> dict[str, Estimate]:
    r"""Estimate the variance of the gradient under both estimators of the KL, at the current parameters.

    For the gradients g and g' of two independent draws, :math:`\tfrac12 \|g - g'\|^2` is an unbiased estimate of the
    trace of the covariance, and :math:`g \cdot g'` of the squared norm of the mean. Both estimators of the KL use the
    same pairs of draws.

    Args:
        trained: The network and its guide.
        batch: Images with captions.
        kl_weight: Weight of the KL in the loss.
        pairs: Number of pairs of draws.

    Returns:
        ``kl_variance_*`` of the weighted KL alone and ``loss_variance_*`` of the whole loss per word piece, each for
        the KL ``closed_form`` and ``sampled``; ``loss_variance_ratio``, sampled divided by closed form;
        ``gradient_square``, the squared norm of the mean gradient.
    """
    trained.module.eval()
    parameters = [parameter for parameter in trained.module.parameters() if parameter.requires_grad]

    def gradient(term: Tensor) -> Tensor:
        if not term.requires_grad:
            return torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients]).double().cpu()

    def draw() -> dict[str, Tensor]:
        gradients = {name: gradient(term) for name, term in loss_terms(trained, batch).items()}
        kl = {name: kl_weight * gradients[name] for name in ESTIMATORS}
        loss = {f"loss_variance_{name}": gradients["likelihood"] + of_kl for name, of_kl in kl.items()}
        return loss | {f"kl_variance_{name}": of_kl for name, of_kl in kl.items()}

    estimates = defaultdict[str, list[float]](list)
    with seeded(trained.config.seed):
        for _ in range(pairs):
            first, second = draw(), draw()
            for name, value in first.items():
                estimates[name].append(0.5 * (value - second[name]).square().sum().item())
            product = first["loss_variance_closed_form"] @ second["loss_variance_closed_form"]
            estimates["gradient_square"].append(product.item())
    closed_form, sampled = (np.array(estimates[f"loss_variance_{kl}"]) for kl in ESTIMATORS)
    ratio = sampled.mean() / closed_form.mean()
    # the standard error of a ratio by the delta method
    estimates["loss_variance_ratio"] = (ratio + (sampled - ratio * closed_form) / closed_form.mean()).tolist()
    return {name: summarize(values) for name, values in estimates.items()}


def gradient_noise_table(finished: Finished) -> list[Part]:
    """Return a table of the noise of the gradients, before and after the trainings of the first seed."""
    columns = {f"{term} {kl.replace('_', ' ')}": f"{term}_variance_{kl}".lower()
               for term in ("KL", "loss") for kl in ESTIMATORS} | {"mean squared": "gradient_square"}  # fmt: skip
    table = list[Row]()
    for guide in [baseline for row, baseline in finished.study.baselines.items() if row in finished.rows]:
        config = finished.configs[guide, "", finished.seeds[0]]
        data, folder = load_images(config)["train"], Path(str(config.out))
        features = data.regions.size(2)
        untrained = build(config, Vocabulary.load(folder / "vocabulary.json"), features)
        trained = load_trained(folder, features, device=config.device)
        for point, network in (("untrained", untrained), ("trained", trained)):
            print(f"Gradients of {guide}, {point}, {2 * PAIRS} draws ...", flush=True)
            batch = next(batches(network, data, references=1))
            noise = gradient_noise(network, batch, kl_weight=config.kl_weight, pairs=PAIRS)
            variances = {head: noise[name] for head, name in columns.items()}
            ratio = noise["loss_variance_ratio"]
            table.append(
                {"guide": guide, "parameters": point}
                | {head: f"{n.mean:.2e} ± {n.standard_error:.0e}" if n.mean else "0" for head, n in variances.items()}
                | {"loss ratio": f"{ratio.mean:.3g} ± {ratio.standard_error:.1g}"}
            )
    text = (
        "Trace of the covariance of the gradient over draws of the attention, on one batch without dropout, ± standard "
        "error. It is shown for the weighted KL alone and for the whole loss per word piece, at the start and at the "
        "best epoch of the first seed's training with the closed form. Mean squared: squared norm of the mean gradient."
    )
    return [Part("Noise of the gradients", text, table, labels=2)] if table else []


_POSTERIORS = ("weibull", "lognormal", "gaussian")
KL_ESTIMATORS = Study(
    name="kl-estimators",
    title="Sampled KL and Gaussian weights",
    text=(
        "Captions of digit scenes, {config.max_epochs} epochs from the beginning. The KL is summed over every weight "
        "and weighted by {config.kl_weight:g}; prior {config.prior}. gaussian has weights off the simplex. A training "
        "that diverges stops the study. Points: share of the digit words of the generated captions whose largest mean "
        "posterior weight is on the digit's own cell."
    ),
    task=TASK,
    rows={
        "soft": {"guide": "soft"},
        **{
            f"{guide}{suffix}": {"guide": guide, "kl": kl}
            for guide in _POSTERIORS
            for suffix, kl in (("", "closed_form"), (" sampled", "sampled"))
        },
    },
    baselines={f"{guide} sampled": guide for guide in _POSTERIORS},
    options={"max_epochs": 4, "kl_weight": 1.0, "hidden": 64, "embedding": 32},
    columns=(VALIDATION, BLEU[0], POINTS),
    parts=(gradient_noise_table,),
)

STUDIES = {"flickr8k": FLICKR8K, "compare": COMPARE, "compare-flickr8k": OWN_ENCODER, "kl-estimators": KL_ESTIMATORS}
table = partial(run_study, STUDIES)
search = partial(run_search, {"flickr8k": Search(FLICKR8K, GRID, (VALIDATION,))})
