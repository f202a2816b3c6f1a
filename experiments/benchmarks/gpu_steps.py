"""Training steps on a GPU: losses compared with the CPU, waits, and times of Bayesian and plain steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyro
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from experiments.benchmarks.measuring import Step
from experiments.benchmarks.networks import (
    Classified,
    Questions,
    Sizes,
    Tokens,
    bert_loss,
    make_bert_step,
    make_predictions,
    make_samples,
    make_scheme_step,
    mcan_loss,
    random_questions,
    random_sentences,
    random_tokens,
    scheme_loss,
)
from experiments.benchmarks.stages import Item, Result
from experiments.benchmarks.throughput import Contestant, clock, race, waits
from experiments.report.statistics import Estimate, Row
from guides.names import SchemeName
from guides.schemes import build_scheme
from models.captioning import Captioning
from models.decoder import DecoderSizes
from models.gat import GAT
from models.vqa import MCANSizes
from pyro_attention import EdgeList
from pyro_attention.ops import noise

# Losses beside the CPU's

BATCHES = 8  # of an epoch
# allowed relative differences in float32 of the first loss, its gradient, and the sum of the losses of an epoch
FIRST_STEP, GRADIENT, EPOCH = 1e-5, 1e-3, 1e-3

COMPARED = (
    "First loss, norm of its gradient, and sum of the losses of an epoch of 8 batches with Adam (learning rate 1e-4), "
    "in float32 without TF32, as relative differences from the CPU's with the same weights, data and noise (all of it "
    "drawn on the CPU); random data. ms: a step of several in a row, without validation."
)
WAITS = (
    "Waits of a later step for the GPU: by the profiler (cudaStreamSynchronize), and by torch's own warnings, which "
    "name the line. CPU ms: until the last of the steps was sent."
)


@dataclass(frozen=True)
class Training:
    """A loss as a module, and the batches of an epoch: positional and keyword arguments."""

    loss: nn.Module
    batches: list[tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes of the trainings that are compared with the CPU's."""

    translation: Sizes = Sizes(20, targets=20, batch=16, width=128, vocabulary=2000)  # noqa: RUF009
    features: int = 256  # of a region
    nodes: int = 2708  # Cora's
    edges: int = 10556
    tokens: Tokens = Tokens(batch=8, length=32, dropout=0.0)  # noqa: RUF009
    questions: Questions = Questions(batch=4, vocabulary=2000, dropout=0.0)  # noqa: RUF009


TINY = TrainingSizes(
    translation=Sizes(3, targets=2, batch=2, width=4, vocabulary=6),
    features=3,
    nodes=7,
    edges=16,
    tokens=Tokens(layers=1, heads=2, width=8, hidden=8, vocabulary=20, batch=3, length=5, dropout=0.0),
    questions=Questions(
        batch=2, words=3, regions=4, features=5, vocabulary=9, answers=4, dropout=0.0,
        network=MCANSizes(embedding=6, width=8, heads=2, layers=2, feed_forward=12, reduced=10),
    ),
)  # fmt: skip


def _translation(scheme: str, sizes: TrainingSizes) -> Training:
    loss = scheme_loss(scheme, sizes.translation)
    return Training(loss, [(random_sentences(sizes.translation), {}) for _ in range(BATCHES)])


def _captioning(scheme: SchemeName, sizes: TrainingSizes) -> Training:
    words, scheme_of = sizes.translation, build_scheme(scheme)
    widths = DecoderSizes(*[words.width] * 4)
    model = Captioning(sizes.features, words.vocabulary, sizes=widths, prior=scheme_of.prior(words.width, 1))

    def batch() -> tuple[Tensor, ...]:
        _, real, target, _, written = random_sentences(words)
        return torch.randn(*real.shape, sizes.features), real, target, target, written

    loss = scheme_of.objective()(model, scheme_of.guide(model, None))
    return Training(loss, [(batch(), {}) for _ in range(BATCHES)])


def _graph(scheme: SchemeName, sizes: TrainingSizes) -> Training:
    scheme_of = build_scheme(scheme)
    model = GAT(sizes.features, 7, prior=scheme_of.prior)
    ends = torch.randint(sizes.nodes, (2, sizes.edges))
    graph = EdgeList.from_edge_index(ends, num_nodes=sizes.nodes, add_self_loops=True)
    labels, labeled = torch.randint(7, (sizes.nodes,)), torch.rand(sizes.nodes) < 0.5
    loss = scheme_of.objective()(model, scheme_of.guide(model))
    # a graph is one batch; an epoch of this table passes over it several times
    return Training(loss, [((torch.randn(sizes.nodes, sizes.features), graph, labels, labeled), {})] * BATCHES)


def _minilm(family: str, sizes: TrainingSizes) -> Training:
    _, loss = bert_loss(family, sizes.tokens)
    assert isinstance(loss, nn.Module)
    return Training(loss, [((), random_tokens(sizes.tokens)) for _ in range(BATCHES)])


def _mcan(family: str, sizes: TrainingSizes) -> Training:
    return Training(
        mcan_loss(family, sizes.questions), [(random_questions(sizes.questions), {}) for _ in range(BATCHES)]
    )


TRAININGS: dict[str, Callable[[TrainingSizes], Training]] = {
    "translation, Weibull": partial(_translation, "weibull"),
    "captioning, Weibull": partial(_captioning, "weibull"),
    "graph, Weibull": partial(_graph, "weibull"),
    "MiniLM, Weibull": partial(_minilm, "Weibull"),
    "MCAN, Weibull": partial(_mcan, "Weibull"),
    "translation, marginal": partial(_translation, "marginal"),
    "captioning, marginal": partial(_captioning, "marginal"),
    "translation, soft": partial(_translation, "soft"),
}


def make_training(name: str, sizes: TrainingSizes) -> Training:
    """Make a training on the CPU without dropout, which the two devices draw in different ways."""
    torch.manual_seed(0)
    training = TRAININGS[name](sizes)
    for module in training.loss.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0
    return training


class CPUNoise(TorchDispatchMode):
    """Mode of torch that draws all random numbers with the CPU's generator, whatever the device."""

    _DRAWS = frozenset({
        "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "normal", "bernoulli",
        "multinomial", "poisson", "binomial", "native_dropout", "_standard_gamma", "_sample_dirichlet", "uniform",
        "exponential", "random", "cauchy", "log_normal", "geometric",
    })  # fmt: skip

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        if name.removesuffix("_") not in self._DRAWS:
            return func(*args, **kwargs)
        tensors = [x for x in args if isinstance(x, Tensor)]
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
        if device.type == "cpu":
            return func(*args, **kwargs)

        def moved(x: Any, to: torch.device | str) -> Any:
            return x.to(to) if isinstance(x, Tensor) else x

        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        drawn = func(*tree_map(lambda x: moved(x, "cpu"), args), **tree_map(lambda x: moved(x, "cpu"), kwargs))
        if name.endswith("_"):
            return args[0].copy_(drawn)
        return tree_map(lambda x: moved(x, device), drawn)


@contextmanager
def noise_of_the_cpu() -> Iterator[None]:
    """Make all noise a function of the seed alone, equal on every device."""

    def uniform(shape: Any, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
        return torch.rand(shape, dtype=dtype, device=device).clamp_min_(2.0**-25)

    with patch.object(noise, "uniform", uniform), CPUNoise():
        yield


def epoch_losses(training: Training, device: str) -> tuple[list[float], float]:
    """Return the losses of an epoch with the noise of the CPU, and the norm of the gradient of the first step."""
    loss = training.loss.to(device)
    descent = torch.optim.Adam(loss.parameters(), lr=1e-4)
    values, norm = list[Tensor](), torch.zeros(())
    torch.manual_seed(1)
    with noise_of_the_cpu(), pyro.validation_enabled(False):
        for arguments, keywords in training.batches:
            descent.zero_grad()
            value = loss(*_moved(arguments, device), **_moved(keywords, device))
            value.backward()
            if not values:
                gradients = [x.grad.double().norm() for x in loss.parameters() if x.grad is not None]
                norm = torch.stack(gradients).norm()
            descent.step()
            values.append(value.detach())
    return torch.stack(values).double().cpu().tolist(), norm.item()


def _moved(x: Any, device: str) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor | EdgeList) else leaf, x)


def cpu_loss_items(sizes: TrainingSizes, folder: Path) -> list[Item]:
    """Return items that compute losses on the CPU and write them into files of a folder."""

    def item(name: str) -> Item:
        def measure() -> Result:
            torch.set_num_threads(1)
            with torch.device("cpu"):
                torch.save(epoch_losses(make_training(name, sizes), "cpu"), folder / f"{name}.pt")
            return Result()

        return Item("Losses of the CPU", name, measure, seconds=100)

    return [item(name) for name in TRAININGS]


def training_items(sizes: TrainingSizes, folder: Path, device: str) -> list[Item]:
    """Return items that compare losses on the device with those in the files, and measure time and waits for a GPU."""
    return [
        Item("Training", name, partial(training_row, name, sizes, folder, device), seconds=40) for name in TRAININGS
    ]


def training_row(name: str, sizes: TrainingSizes, folder: Path, device: str) -> Result:
    """Return the row of a training, and the lines where it waits for a GPU."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    training = make_training(name, sizes)
    values, norm = epoch_losses(training, device)
    problems = list[str]()
    row: Row = {"training": name, "first loss": Estimate(values[0], digits=4)}
    path = folder / f"{name}.pt"
    if path.is_file():
        expected, expected_norm = torch.load(path)
        pairs = {
            "first step": (values[0], expected[0], FIRST_STEP),
            "gradient": (norm, expected_norm, GRADIENT),
            "epoch": (sum(values), sum(expected), EPOCH),
        }
        errors = {column: abs(a - b) / max(abs(b), 1e-12) for column, (a, b, _) in pairs.items()}
        right = all(error <= pairs[column][2] for column, error in errors.items())
        row |= {column: f"{error:.1e}" for column, error in errors.items()} | {"right": "yes" if right else "no"}
    else:
        row |= dict.fromkeys(("first step", "gradient", "epoch"), "-") | {"right": "no loss of the CPU"}
    step = _training_step(training, device)
    for _ in range(3):
        step()
    if device == "cuda":
        count, warned, lines = waits(step)
        if lines:
            problems.append(f"waits of {name}: {lines}")
        row |= {"waits": Estimate(count, digits=0), "by warnings": Estimate(warned, digits=0)}
    milliseconds, sent = clock(step, 5)
    row |= {"ms": Estimate(milliseconds, digits=2)} | ({"CPU ms": Estimate(sent, digits=2)} if device == "cuda" else {})
    return Result([row], problems)


def _training_step(training: Training, device: str) -> Step:
    """Return a step on the first batch, which is on the device."""
    descent = torch.optim.Adam(training.loss.parameters(), lr=1e-4)
    arguments, keywords = (_moved(inputs, device) for inputs in training.batches[0])

    def step() -> None:
        with pyro.validation_enabled(False):
            descent.zero_grad()
            training.loss(*arguments, **keywords).backward()
            descent.step()

    return step


# times of Bayesian steps

STEPS = (
    "Training steps, ratios to the first row of each size. BERT-base: 32 x 128 tokens with padding, AdamW; in float32 "
    '(as torch computes by default) and with autocast to bfloat16. "sdpa" is the plain network with torch\'s fused '
    'attention, whose dropout makes it MC dropout\'s training step too; "soft" is the converted network without noise. '
    "Translation: 64 sentences of 25 words, 32000 tokens, two layers of width 768, that of the decoder of Deng et al. "
    "(2018), Adam. Bar: Weibull at most 1.15 of soft for BERT-base."
)
DRAWN = "32 draws of the posterior in chunks, beside one pass without noise."


def step_items(device: str) -> list[Item]:
    """Return the races of training steps."""
    base = Tokens(layers=12, heads=12, width=768, hidden=3072, length=128)
    paper = Sizes(batch=64, width=768, vocabulary=32_000)
    if device == "cpu":
        base, paper = TINY.tokens, TINY.translation
    bert, schemes = ("soft", "Weibull", "sdpa"), ("soft", "weibull", "marginal", "categorical_enum")
    return [
        _race("Steps", "BERT-base, bfloat16", make_bert_step, bert, replace(base, precision="bf16-mixed"), device),
        _race("Steps", "BERT-base, float32", make_bert_step, (*bert, "LogNormal"), base, device),
        _race("Steps", "translation", make_scheme_step, schemes, paper, device),
        _race(
            "Steps",
            "translation, bfloat16",
            make_scheme_step,
            schemes[:2],
            replace(paper, precision="bf16-mixed"),
            device,
        ),
    ]


def draw_items(device: str) -> list[Item]:
    """Return the races of predictions by 32 draws."""
    paper, classified = Sizes(batch=64, width=768, vocabulary=32_000), Classified(layers=6, width=512, heads=8)
    if device == "cpu":
        paper, classified = TINY.translation, Classified(batch=2, length=3, width=8, heads=2, layers=2)
    return [
        _race(
            "Draws", "classifier of 6 layers", make_predictions,
            ("a pass", "32 draws", "32 draws of the last layer"), classified, device,
        ),
        _race(
            "Draws", "alignments of translation", make_samples,
            ("deterministic pass", "32 samples, chunked", "32 samples, one at a time"), paper, device,
        ),
    ]  # fmt: skip


def _race(
    table: str,
    name: str,
    make_step: Callable[[Any, Any], Step | None],
    contestants: tuple[str, ...],
    sizes: Any,
    device: str,
) -> Item:
    def make(contestant: str) -> Contestant | None:
        with torch.device(device), pyro.validation_enabled(False):
            step = make_step(contestant, sizes)
        if step is None:
            return None

        def without_validation() -> None:
            with pyro.validation_enabled(False):
                step()

        return Contestant(without_validation)

    def measure() -> Result:
        return race(
            {contestant: partial(make, contestant) for contestant in contestants}, size=name, seconds=10, rounds=7
        )

    return Item(table, name, measure, seconds=50)
