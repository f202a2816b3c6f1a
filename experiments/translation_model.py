"""Texts, vocabulary, network and guide of a translation run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from torch import Tensor, nn

from experiments.checkpoints import AtomicCheckpointIO
from experiments.datasets.batches import Batch
from experiments.datasets.parallel import ParallelText, load_parallel, read_parallel
from experiments.datasets.toy_translation import toy_translation
from experiments.datasets.vocabulary import Vocabulary, train_tokenizer
from experiments.results import UserError, user_errors
from experiments.training import ELBOTraining, load_best, resolve_device, seeded_build
from experiments.translation_config import TranslationConfig
from guides import AlignmentNetwork, AlignmentSchemeName, build_scheme
from models.next_word import target_log_probs
from models.nmt import Translation, TranslationSizes
from pyro_attention import Amortised, AttentionGuide, Family, Prior

__all__ = [
    "Trained",
    "TranslationTraining",
    "build",
    "load_text",
    "load_trained",
    "load_vocabulary",
    "model_arguments",
    "read_config",
]


def model_arguments(batch: Batch) -> tuple[Tensor, ...]:
    """Arguments of the model's call in a batch."""
    return batch.source, batch.source_mask, batch.target_in, batch.target_out, batch.target_mask


class TranslationTraining(ELBOTraining):
    """Trains on batches of sentence pairs; its checkpoints know the vocabulary they belong to."""

    def __init__(self, *parts: Any, vocabulary: Vocabulary, warm_start: int = 0, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.vocabulary, self.warm_start = vocabulary, warm_start

    def on_train_epoch_start(self) -> None:
        """Leave the inference network aside in the first epochs of a warm start."""
        family = self.objective.guide.family("alignment")
        if isinstance(family, Amortised):
            family.warm_start = self.current_epoch < self.warm_start

    def arguments(self, batch: Batch) -> Sequence[Tensor]:
        return model_arguments(batch)

    def observations(self, batch: Batch) -> int:
        return int(batch.target_mask.sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        family = prediction_family(self.objective.guide)
        log_probs = target_log_probs(self.objective.model, *model_arguments(batch), family=family)
        return {"loss": -log_probs.sum() / self.observations(batch)}

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    def get_extra_state(self) -> Tensor:
        """Fingerprint of the vocabulary."""
        return torch.tensor(list(bytes.fromhex(self.vocabulary.fingerprint)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Check the fingerprint of a checkpoint."""
        self.vocabulary.require(bytes(state.tolist()).hex(), "the checkpoint")


def prediction_family(guide: AttentionGuide) -> Family:
    """The family that serves without the words to come: that of an inference network, by itself."""
    family = guide.family("alignment")
    return family.family if isinstance(family, Amortised) else family


@dataclass(frozen=True)
class Trained:
    """A translation network with its guide.

    Attributes:
        config: How it was made.
        module: Network, guide and objective.
        vocabulary: Word pieces of both languages.
    """

    config: TranslationConfig
    module: TranslationTraining
    vocabulary: Vocabulary

    @property
    def model(self) -> Translation:
        """The network."""
        model: Translation = self.module.objective.model
        return model

    @property
    def guide(self) -> AttentionGuide:
        """The guide over the network."""
        guide: AttentionGuide = self.module.objective.guide
        return guide

    @property
    def family(self) -> Family:
        """The family that serves without the words to come."""
        return prediction_family(self.guide)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.output.weight.device


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Sentence pairs of a split: "train", "val" or "test"; only training pairs may be left out for their length."""
    languages = (config.source, config.target)
    rules: dict[str, Any] = {"lowercase": config.lowercase, "skip": config.skip_bad}
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset == "toy":
        if languages != ("de", "en"):
            raise UserError(f"dataset toy is from de to en, not from {config.source} to {config.target}")
        return _lowered(_toy()[split]) if config.lowercase else _toy()[split]
    if config.dataset != "own":
        source, target = languages
        return load_parallel(config.dataset, split, source=source, target=target, data_root=config.data_root, **rules)
    if config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    if split == "train" and not config.skip_bad:
        # a long pair is left out, a bad line stops
        read_parallel(*_own_files(config, split), languages=languages)
    return read_parallel(*_own_files(config, split), languages=languages, name=config.text.name, **rules)


@cache
def _toy() -> dict[str, ParallelText]:
    return toy_translation()


def _own_files(config: TranslationConfig, split: str) -> list[Path]:
    folder = Path() if config.text is None else config.text
    return [folder / f"{split}.{language}" for language in (config.source, config.target)]


def _lowered(text: ParallelText) -> ParallelText:
    source, target = ([sentence.lower() for sentence in side] for side in (text.source, text.target))
    return ParallelText(source, target, text.name, text.languages, text.alignments)


def load_vocabulary(config: TranslationConfig, folder: Path) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""
    path = folder / "vocabulary.json"
    if path.is_file():
        return Vocabulary.load(path)
    if config.init_from is not None:
        vocabulary = Vocabulary.load(config.init_from / "vocabulary.json")
    else:
        text = load_text(config, "train")
        vocabulary = train_tokenizer([*text.source, *text.target], size=config.vocabulary)
    vocabulary.save(path)
    return vocabulary


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    of_all_words = config.guide in get_args(AlignmentSchemeName) and config.guide != "hard_sample"
    if config.input_feed == "sampled" and of_all_words:
        raise ValueError(
            f"guide {config.guide} does not go with input_feed sampled, where each alignment depends on those before; "
            f"expected soft, weibull, lognormal, gamma or hard_sample, or input_feed expected"
        )
    scheme = build_scheme(
        config.guide, prior=config.prior, kl_weight=config.kl_weight, concentration=config.concentration,
        scale=config.scale, prior_rate=config.prior_rate, prior_scale=config.prior_scale,
        temperature=config.temperature, particles=config.particles,
    )  # fmt: skip
    sizes = TranslationSizes(
        embedding=config.embedding, memory=config.hidden, decoder=config.hidden, attention=config.hidden,
        layers=config.layers,
    )  # fmt: skip

    def make(prior: Callable[[int, int], Prior]) -> Translation:
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, plain=build_scheme("soft").prior, seed=config.seed)
    network = _inference_network(config, model) if scheme.amortised else None
    if config.init_from is not None:
        _start_from(model, config.init_from, vocabulary)
    module = TranslationTraining(
        model, scheme.guide(model, network), scheme.elbo, vocabulary=vocabulary, warm_start=config.warm_start,
        learning_rate=config.learning_rate,
    )  # fmt: skip
    return Trained(config, module.to(resolve_device(config.device)), vocabulary)


def _inference_network(config: TranslationConfig, model: Translation) -> nn.Module:
    return AlignmentNetwork(
        model.source_embedding,
        model.target_embedding,
        hidden=config.hidden,
        layers=config.layers,
        dropout=config.dropout,
    )


def _start_from(model: Translation, folder: Path, vocabulary: Vocabulary) -> None:
    """Weights of another run's network; only a prior network may be missing there."""
    path, prefix = folder / "checkpoints" / "best.ckpt", "objective.model."
    if not path.is_file():
        raise UserError(f"{path} is missing; init_from takes the folder of a finished run")
    state = AtomicCheckpointIO().load_checkpoint(path)["state_dict"]
    with user_errors(ValueError, KeyError):
        vocabulary.require(bytes(state["_extra_state"].tolist()).hex(), path)
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    ours = model.state_dict()
    misfits = [name for name, value in ours.items() if name in weights and weights[name].shape != value.shape]
    misfits += [name for name in ours if name not in weights and not name.startswith("attention.prior.")]
    if misfits:
        raise UserError(f"{path} has another {misfits[0]} than this network; give both runs the same sizes")
    model.load_state_dict({name: value for name, value in weights.items() if name in ours}, strict=False)


def load_trained(folder: Path, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch.

    Raises:
        UserError: The folder holds no run, or one of another network.
    """
    with user_errors(ValueError, OSError):
        config = read_config(folder, device=device)
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"))
        load_best(trained.module, folder)
    return trained


def read_config(folder: Path, **changes: Any) -> TranslationConfig:
    """The configuration of the run in a folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} holds no run (config.yaml is missing); train one: python -m experiments.nmt train")
    with user_errors(yaml.YAMLError):
        values = yaml.safe_load(path.read_text())
    known = {field.name for field in fields(TranslationConfig)}
    paths = ("out", "data_root", "text")
    values = {name: Path(value) if name in paths and value else value for name, value in values.items()}
    # the weights are loaded: where they started does not matter any more
    values |= {"out": folder, "init_from": None} | changes
    return TranslationConfig(**{name: value for name, value in values.items() if name in known})
