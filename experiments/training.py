"""Training by the ELBO on Lightning: one module for every task, one function that fits it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Generic, Literal, TypeVar

import lightning.pytorch as pl
import pyro
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from pyro.infer import ELBO
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader

from experiments.callbacks import (
    AGAIN,
    AtomicCheckpointIO,
    Bar,
    Checkpoints,
    EarlyStopping,
    History,
    Keep,
    RandomState,
    SamplerEpoch,
    read_weights,
    weights_file,
)
from experiments.files import UserError, reading, user_errors
from experiments.folder import is_first, write_environment
from experiments.options import BatchOptions, Device, Precision, TrainingOptions
from experiments.report.terminal import wrapped
from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    Soft,
    predict,
)
from pyro_attention.analysis import hybrid_weights, key_mass
from pyro_attention.families.base import Prior

PriorFactory = Callable[[int, int], Prior]
Model = TypeVar("Model", bound=nn.Module)
Options = TypeVar("Options", bound=TrainingOptions)


def hybrid_metrics(model: nn.Module) -> dict[str, float]:
    """Return the share of doubly normalized attention in every head of hybrid attention, as ``hybrid_SITE_HEAD``."""
    shares = hybrid_weights(model)
    return {f"hybrid_{site}_{head}": share.item() for site, row in shares.items() for head, share in enumerate(row)}


def masses_of_keys(weights: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Return the sum of the weights that all queries give to each real key of a batch, ``[real keys, heads]``.

    Args:
        weights: ``[B, heads, M, N]``.
        queries: False at the padding, ``[B, M]``.
        keys: False at the padding, ``[B, N]``.
    """
    layout = Dense((queries[:, :, None] & keys[:, None])[:, None])
    return key_mass(weights, layout=layout).transpose(1, 2)[keys].cpu()


class ELBOTraining(pl.LightningModule):
    """Training of a model and its guide; a subclass counts a batch and measures validation data.

    The loss is the negative ELBO of a batch divided by its observations; the ``step`` of an :class:`AttentionELBO` is
    the number of optimizer steps taken. With a ``plateau`` the learning rate is halved after so many epochs without a
    better validation loss, and one more.
    """

    objective: Any  # of Pyro: the ELBO, called with the batch; it holds the model, the guide and itself as elbo

    def __init__(
        self,
        model: nn.Module,
        guide: AttentionGuide,
        elbo: ELBO,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        plateau: int | None = None,
    ) -> None:
        super().__init__()
        self.plateau = plateau
        self.objective = elbo(model, guide)
        # plain numbers: checkpoints hold them, and are read without the types of the command line
        self.learning_rate, self.weight_decay = float(learning_rate), float(weight_decay)

    def arguments(self, batch: Any) -> Sequence[Any]:
        """Return the model's arguments in a batch; here a batch is a tuple of them."""
        return batch

    def observations(self, batch: Any) -> int:
        """Return the number of observations in a batch."""
        raise NotImplementedError

    def evaluate(self, batch: Any) -> dict[str, Tensor]:
        """Return validation metrics of a batch, means over its observations, which are logged as ``val_NAME``."""
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        elbo, size = self.objective.elbo, self.observations(batch)
        if isinstance(elbo, AttentionELBO):
            elbo.step = self.global_step
        loss: Tensor = self.objective(*self.arguments(batch)) / size
        record = {"loss": loss.detach()}
        if isinstance(elbo, AttentionELBO):
            record["kl_weight"] = torch.tensor(elbo.current_kl_weight())
            record |= {f"kl_{site}": kl for site, kl in elbo.kl_record.items()}
        if isinstance(elbo, EvidenceELBO) and elbo.gap_record is not None:
            record |= {"gap": elbo.gap_record.mean, "few_draws": elbo.gap_record.share}
        if isinstance(elbo, AlignmentELBO):
            record |= {f"support_{site}": count for site, count in elbo.support_record.items()}
            record |= {f"cut_{site}": share for site, share in elbo.cut_record.items()}
        self.log_dict(record, on_step=False, on_epoch=True, batch_size=size, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        metrics = {f"val_{name}": value for name, value in self.evaluate(batch).items()}
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=self.observations(batch), sync_dist=True)

    def on_train_end(self) -> None:
        """Warn once more where the draws of the evidence are too few."""
        if isinstance(self.objective.elbo, EvidenceELBO):
            self.objective.elbo.gap_watch.check()

    def on_validation_epoch_end(self) -> None:
        """Log the mixing weights of hybrid attention, so that history.csv holds their trajectories."""
        self.log_dict(hybrid_metrics(self.objective.model), sync_dist=True)

    def configure_optimizers(self) -> Any:
        # L2 on everything, biases and prior networks too, as the reference code does; AdamW would be another method
        # fused: all parameters in one call, 7 % of a step of MCAN on a CPU
        optimizer = torch.optim.Adam(
            self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        if self.plateau is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.plateau)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}

    def configure_gradient_clipping(self, _: Any, gradient_clip_val: float | None = None, **__: Any) -> None:  # type: ignore[override]
        """Clip by norm; Lightning refuses fused optimizers, whose gradients may be scaled; bfloat16 does not scale."""
        if gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Plan a learning rate that rises for a tenth of the steps and then falls to zero, linearly.

    Up to ten steps it falls from the first one on.
    """
    # torch divides by the number of steps from the first to the highest rate, zero of ten steps, and gives a single
    # step the lowest rate
    total = max(2, steps)
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=total, pct_start=min(0.1, 0.99 / total) if total <= 10 else 0.1,
        anneal_strategy="linear", cycle_momentum=False,
    )  # fmt: skip


class OneCycleTraining(ELBOTraining):
    """Training with a learning rate that :func:`one_cycle` plans over all steps."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = one_cycle(optimizer, self.learning_rate, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@dataclass(frozen=True)
class Trained(Generic[Options, Model]):
    """Network with its guide, and the options that it was made with; a task adds what else is needed to use it."""

    config: Options
    module: ELBOTraining

    @property
    def model(self) -> Model:
        """The network."""
        return self.module.objective.model

    @property
    def guide(self) -> AttentionGuide:
        """The guide over the network."""
        return self.module.objective.guide

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.module.device


def is_soft(guide: AttentionGuide) -> bool:
    """Return whether every attention of a guide is deterministic."""
    return all(isinstance(family, Soft) for family in guide.families)


def mean_prediction(
    trained: Trained[Any, Any], arguments: Iterable[Any], transform: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the mean of a network's transformed outputs over posterior samples; one run under soft attention."""
    soft = is_soft(trained.guide)
    return predict(
        trained.guide, *arguments, num_samples=1 if soft else trained.config.num_samples,
        noise="none" if soft else "attention", seed=trained.config.seed, transform=transform,
    ).mean  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """Record of a finished training."""

    history: list[dict[str, float]]  # metrics of every epoch
    best_epoch: int  # of the weights that the module now has
    updates: int  # training steps
    parameters: int  # trained numbers in network, priors, guide and inference network

    @property
    def metrics(self) -> dict[str, float]:
        """Length and size of the training; docs/metrics.md explains them."""
        return {
            "best_epoch": self.best_epoch,
            "epochs": len(self.history),
            "updates": self.updates,
            "step_ms": median(row["step_ms"] for row in self.history),
            "parameters": self.parameters,
        }


def resolve_device(device: Device) -> torch.device:
    """Return the device to compute on; UserError when a GPU is asked for and there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, but torch finds no GPU; pass --device cpu")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def cpu_computes_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16."""
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False  # oneDNN, which computes an LSTM, then refuses to
    # with the other instructions of AVX-512 it does, and takes ten times as long
    cpu = torch.cpu
    return not cpu._is_avx512_supported() or cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()


@cache
def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return the arithmetic to train in: 32 bits, with a warning once, where a CPU has no instructions for bfloat16."""
    if precision == "32" or device.type != "cpu" or cpu_computes_bfloat16():
        return precision
    print(f"warning: this CPU has no instructions for {precision}: computing in 32 bits", file=sys.stderr)
    return "32"


def fit(
    config: TrainingOptions,
    module: ELBOTraining,
    train_data: Any,
    val_data: Any,
    *,
    folder: Path,
    patience: int,
    monitor: Mapping[str, Literal["min", "max"]],
    keep: Keep = "best",
    gradient_clip: float | None = None,
    callbacks: Sequence[pl.Callback] = (),
) -> Fitted:
    """Train a module and leave it, on the device and in evaluation mode, with its best weights or the last ones.

    With ``resume`` training goes on from the last checkpoint in the folder, if there is one; more epochs may be asked
    for than before. Of several devices each takes the gradient of its own part of a batch, divided by its observations,
    and these are averaged; only the first process comes back from here.

    Args:
        config: How to train.
        module: What to train.
        train_data: Data loader, or any sized iterable over batches.
        val_data: Batches for validation.
        folder: Gets environment.json, history.csv and checkpoints/.
        patience: Epochs without a good metric before training stops.
        monitor: Metrics that decide on the best epoch; see :class:`EarlyStopping`.
        keep: Whether the weights of the best epoch or of the last one are left, there called the best one too.
        gradient_clip: Largest norm of the gradient.
        callbacks: The task's own callbacks.

    Raises:
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` goes on from the last checkpoint.
        UserError: No such device, a checkpoint that cannot be read or holds more epochs, no epoch with finite metrics,
            or a batch that cannot be computed.
    """
    history, stopping = History(), EarlyStopping(monitor, patience=patience, keep=keep)
    checkpoints = Checkpoints(folder, history, stopping)
    every = [*callbacks, history, stopping, RandomState(config.seed), checkpoints]
    target = resolve_device(config.device)
    precision = resolve_precision(config.precision, target)
    shows = config.progress and is_first()
    if shows and target.type == "cpu":
        print(_arithmetic(precision), file=sys.stderr)
    if is_first():
        write_environment(folder, target)
    resume_from = checkpoints.last if config.resume and checkpoints.last.exists() else None
    with user_errors(ValueError, OSError, MisconfigurationException), _quiet():
        if shows:
            every.append(Bar([*monitor, "gap"]))
        trainer = _trainer(
            config, target, precision, callbacks=every, gradient_clip_val=gradient_clip, enable_progress_bar=shows,
            default_root_dir=folder,
        )  # fmt: skip
        try:
            trainer.fit(module, train_data, val_data, ckpt_path=resume_from)
        except SystemExit as stop:  # Lightning's answer to Ctrl-C and SIGTERM
            raise KeyboardInterrupt from stop
    if config.processes > 1:
        trainer.strategy.barrier()
        distributed.destroy_process_group()
        if not is_first():
            sys.exit()
    if stopping.best_epoch < 0:
        raise UserError(f"no epoch has a finite {' and '.join(monitor)}; try a smaller learning rate")
    module.load_state_dict(stopping.weights)
    module.to(target).eval()
    if config.progress and len(history.rows) < config.max_epochs:
        names = " or ".join(monitor)
        text = f"stopped early after {len(history.rows)} epochs: none of the last {patience} had as good a {names}"
        print(wrapped(text))
    parameters = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return Fitted(history.rows, stopping.best_epoch, updates=trainer.global_step, parameters=parameters)


def _trainer(config: TrainingOptions, target: torch.device, precision: Precision, **options: Any) -> pl.Trainer:
    """Return Lightning's trainer on the devices of the options."""
    return pl.Trainer(
        accelerator="gpu" if target.type == "cuda" else "cpu",
        devices=config.devices,
        num_nodes=config.num_nodes,
        strategy="ddp_find_unused_parameters_true" if config.processes > 1 else "auto",
        logger=False,
        precision="32-true" if precision == "32" else "bf16-mixed",
        max_epochs=config.max_epochs,
        plugins=[AtomicCheckpointIO()],
        use_distributed_sampler=False,  # batches are shared out by their sampler
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


def _arithmetic(precision: Precision) -> str:
    """Say in a line which arithmetic a CPU computes in, and whether there is a faster one."""
    if precision == "bf16-mixed":
        return "Computing in bfloat16 and 32 bits."
    if cpu_computes_bfloat16():
        return "Computing in 32 bits; --precision bf16-mixed is available on this CPU."
    return "Computing in 32 bits; this CPU has no instructions for bfloat16."


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's hints: they concern devices and loaders that we chose on purpose."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for hint in (
            "GPU available but not used",
            "The .*dataloader.* does not have many workers",
            "Grad strides do not match bucket view strides",
            r"`isinstance\(treespec, LeafSpec\)` is deprecated",
        ):
            warnings.filterwarnings("ignore", hint)
        yield


def fit_batches(
    config: BatchOptions,
    module: ELBOTraining,
    train_data: DataLoader[Any],
    val_data: DataLoader[Any],
    *,
    folder: Path,
    patience: int,
    monitor: Mapping[str, Literal["min", "max"]] | None = None,
    keep: Keep = "best",
) -> Fitted:
    """Call :func:`fit` on loaders whose batches a :class:`BucketSampler` chooses.

    The metric that decides is the validation loss when ``monitor`` is omitted.
    """
    return fit(
        config, module, train_data, val_data, folder=folder, patience=patience, monitor=monitor or {"val_loss": "min"},
        keep=keep, gradient_clip=config.gradient_clip, callbacks=[SamplerEpoch(train_data.sampler, val_data.sampler)],
    )  # fmt: skip


def load_best(module: ELBOTraining, folder: Path) -> None:
    """Give a module the best weights that a finished run left in its folder; UserError where they do not fit it."""
    path = weights_file(folder)
    weights = read_weights(path)
    with reading(path, "weights of this network", AGAIN):
        module.load_state_dict(weights)


def seeded_build(build: Callable[[PriorFactory], Model], prior: PriorFactory, *, seed: int) -> Model:
    """Build a network whose initial weights depend on the seed alone, and not on which prior it has.

    The random state afterwards is that of the seed, so the dropout masks of the first step are alike too.
    """
    pyro.set_rng_seed(seed)
    # a fixed prior has no parameters and draws no random numbers
    reference = build(lambda *_: FixedGammaPrior())
    pyro.set_rng_seed(seed)
    model = build(prior)
    model.load_state_dict(dict(reference.named_parameters()), strict=False)
    pyro.set_rng_seed(seed)
    return model
