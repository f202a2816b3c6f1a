"""Network and guide of a run on questions, and how it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.questions.data import Questions
from experiments.files import UserError
from experiments.harness.training import ELBOTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.vqa.config import VQAConfig
from experiments.vqa.data import Answered, QuestionBatch, Words
from guides.inference_network import AnswerNetwork
from guides.schemes import build_normalizer
from models.vqa import MCAN, AnswerModel, BottomUp, MCANSizes, MultiView
from pyro_attention import AlignmentPrior, AttentionGuide, Soft, predict
from pyro_attention.normalizers import Normalizer
from pyro_attention.posterior.predictive import Noise

__all__ = ["AnswerTraining", "TrainedAnswers", "build"]


class AnswerTraining(ELBOTraining):
    """Trains on batches of questions, with noise on the regions if asked for.

    Args:
        parts: As of :class:`ELBOTraining`.
        noise: Standard deviation of Gaussian noise on the regions in training, in units of the features' own.
        spread: Standard deviation of the features.
        options: As of :class:`ELBOTraining`.
    """

    def __init__(self, *parts: Any, noise: float = 0.0, spread: float = 1.0, **options: Any) -> None:
        super().__init__(*parts, plateau=1, **options)
        self.noise, self.spread = noise, spread

    @property
    def sums_out(self) -> bool:
        """Whether the model has an alignment, over which test predictions sum."""
        model: AnswerModel = self.objective.model
        return isinstance(model, BottomUp) and isinstance(model.attention.prior, AlignmentPrior)

    def arguments(self, batch: QuestionBatch) -> Sequence[Tensor]:
        regions = batch.regions
        if self.noise and self.training:
            regions = regions + self.noise * self.spread * torch.randn_like(regions)
        return batch.question, batch.question_mask, regions, batch.region_mask, batch.answer

    def observations(self, batch: QuestionBatch) -> int:
        return len(batch.question)

    def outputs(
        self, batch: QuestionBatch, *, num_samples: int = 1, noise: Noise = "none", seed: int | None = None
    ) -> Tensor:
        """Samples of the logits, or log probabilities, of all answers, ``[S, B, answers]``."""
        inputs = self.arguments(batch)[:4]
        if self.sums_out:
            model: BottomUp = self.objective.model
            with torch.no_grad():
                return model.mixture(*inputs).unsqueeze(0)
        guide: AttentionGuide = self.objective.guide
        options = {"num_samples": num_samples, "noise": noise, "seed": seed, "keep_samples": True}
        if noise == "attention":  # dropout draws its masks pass by pass
            options["chunk_size"] = num_samples
        samples = predict(guide, *inputs, **options).samples  # type: ignore[arg-type]
        if samples is None:
            raise ValueError("the prediction kept no samples")
        return samples

    def evaluate(self, batch: QuestionBatch) -> dict[str, Tensor]:
        logits = self.outputs(batch)[0]
        if self.objective.model.likelihood == "single":
            loss = torch.nn.functional.cross_entropy(logits, batch.answer)
            return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.answer).float().mean()}
        if self.sums_out:
            logits = logits - torch.log1p(-logits.exp().clamp_max(1 - 1e-6))  # of log probabilities
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.answer, reduction="sum")
        best = batch.answer.gather(-1, logits.argmax(-1, keepdim=True))
        return {"loss": entropy / len(logits), "accuracy": best.mean()}


@dataclass(frozen=True)
class TrainedAnswers(Trained[VQAConfig, AnswerModel]):
    """A network that answers questions, with its guide.

    Attributes:
        words: Ids of words and classes of answers.
    """

    words: Words
    module: AnswerTraining

    @property
    def is_random(self) -> bool:
        """Whether predictions average over samples of the attention."""
        return not self.module.sums_out and not isinstance(next(iter(self.guide.families)), Soft)

    def answered(self, data: Questions) -> Answered:
        """Questions with their answers as the network's targets."""
        return Answered(data, self.words, self.config.likelihood, seed=self.config.seed)


def build(config: VQAConfig, words: Words, data: Questions) -> TrainedAnswers:
    """Network and guide, untrained.

    Raises:
        UserError: A scheme that the model cannot have.
        ValueError: Options that do not go together.
    """
    aligned = config.guide not in ("soft", "weibull", "lognormal", "gamma")
    if aligned and config.model != "bottom_up":
        raise UserError(
            f"guide is {config.guide}, which infers one alignment of a question; {config.model} takes soft, weibull, "
            f"lognormal or gamma, and --model bottom_up takes all"
        )
    if config.guide == "dirichlet":
        raise UserError(
            "guide is dirichlet, whose posterior has seen the answer and cannot predict it, and whose prior cannot be "
            "summed out; expected another scheme, such as gumbel"
        )
    scheme = config.build_scheme(plates=1)
    features = data.regions.features.size(-1)
    model = seeded_build(lambda prior: _network(config, words, features, prior), scheme.prior, seed=config.seed)
    network = None
    if isinstance(model, BottomUp) and scheme.amortised:
        network = AnswerNetwork(
            model.region_features, len(words.answers), question=model.encode_question,
            regions=model.encode_regions, hidden=config.hidden, embedding=config.hidden,
        )  # fmt: skip
    module = AnswerTraining(
        model, scheme.guide(model, network), scheme.elbo, noise=config.feature_noise,
        spread=data.regions.spread, learning_rate=config.learning_rate,
    )  # fmt: skip
    return TrainedAnswers(config, module.to(resolve_device(config.device)), words)


def _network(config: VQAConfig, words: Words, features: int, prior: PriorFactory) -> AnswerModel:
    sizes: tuple[int, int, int] = len(words), features, len(words.answers)

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads)

    options: dict[str, Any] = {"dropout": config.dropout, "likelihood": config.likelihood}
    if config.model == "mcan":
        width = config.hidden
        network = MCANSizes(width, width, config.heads, config.layers, 4 * width, 2 * width)
        return MCAN(*sizes, sizes=network, prior=prior, normalizer=normalizer, **options)
    options |= {"embedding": config.hidden, "hidden": config.hidden}
    if config.model == "multi_view":
        return MultiView(*sizes, prior=prior, normalizer=normalizer, **options)
    seen = config.hidden if config.layers else features
    return BottomUp(*sizes, context_layers=config.layers, heads=config.heads, prior=prior(seen, 1), **options)
