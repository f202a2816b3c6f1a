"""What all models of visual question answering share: their call, their checks and the likelihood of an answer."""

from __future__ import annotations

from typing import Literal

import pyro
import torch
from pyro.distributions import Bernoulli
from torch import Tensor, nn

from pyro_attention import TokenLikelihood
from pyro_attention.ops.layers import encode_sequence

Likelihood = Literal["single", "scores"]


class AnswerModel(nn.Module):
    r"""Answer to a question about regions: the site ``answer``, in a plate over questions.

    .. math:: a \sim \mathrm{Categorical}(\mathrm{softmax}(W h + b)) \quad\text{or}\quad
              s_a \sim \mathrm{Bernoulli}(\sigma(W h + b)_a)

    With "single" an answer is one class. With "scores" it is a soft score in [0, 1] for each class, such as
    :math:`\min(\text{number of humans} / 3, 1)`; the log probability is then the binary cross-entropy, summed over
    classes. A subclass computes the features ``h`` in :meth:`features`, where its attention sites are.

    Args:
        width: Width of the features.
        answers: Number of answers.
        likelihood: "single" or "scores".

    Raises:
        ValueError: At a call: shapes that do not fit, a question without a word, or a photograph
            without a region.

    Source: Teney et al. (2018), Tips and Tricks for Visual Question Answering, section 3.2 (scores); Deng et al.
    (2018), Latent Alignment and Variational Attention, appendix B (single).
    """

    region_dims = 3  # [B, N, F]; a model of several views has one more

    def __init__(self, width: int, answers: int, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood: Likelihood = likelihood
        self.output = nn.Linear(width, answers)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        """What an answer is read from, ``[..., B, width]``; called in the plate over questions."""
        raise NotImplementedError

    def forward(
        self,
        question: Tensor,
        question_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Logits of all answers.

        Args:
            question: Ids of words ``[B, M]``.
            question_mask: True at words, False at the padding behind them, ``[B, M]``.
            regions: Features ``[B, N, F]``, or ``[B, V, N, F]`` of a model of several views.
            region_mask: True at regions, False at padding, shaped like the regions without their features.
            answer: Classes ``[B]``, or with the likelihood "scores" soft scores ``[B, answers]``; drawn when omitted.

        Returns:
            ``[..., B, answers]``.
        """
        self._check(question, question_mask, regions, region_mask)
        pyro.module("answermodel", self)
        with pyro.plate("questions", question.size(0), dim=-1):
            features = self.features(question, question_mask, regions, region_mask)
            if self.likelihood == "single":
                likelihood = TokenLikelihood(features, self.output.weight, self.output.bias)
                pyro.sample("answer", likelihood, obs=answer)
                return likelihood.logits
            logits: Tensor = self.output(features)
            # soft scores lie between the two values that a Bernoulli variable has, so its own check is off
            pyro.sample("answer", Bernoulli(logits=logits, validate_args=False).to_event(1), obs=self._scores(answer))
        return logits

    def last_state(self, lstm: nn.LSTM, words: Tensor, mask: Tensor) -> Tensor:
        """State ``[B, hidden]`` of an LSTM after the last word of every question."""
        states = encode_sequence(lstm, words, mask)
        return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]

    def _scores(self, answer: Tensor | None) -> Tensor | None:
        if answer is not None and not bool(((answer >= 0) & (answer <= 1)).all()):
            low, high = answer.min().item(), answer.max().item()
            raise ValueError(f"answer has soft scores from {low} to {high}, expected numbers in [0, 1]")
        return answer

    def _check(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> None:
        if (
            question_mask.shape != question.shape
            or regions.dim() != self.region_dims
            or region_mask.shape != regions.shape[:-1]
            or len(regions) != len(question)
        ):
            shapes = ", ".join(str(tuple(one.shape)) for one in (question, question_mask, regions, region_mask))
            views = "" if self.region_dims == 3 else "views, "
            raise ValueError(
                f"question, question_mask, regions and region_mask have shapes {shapes}, expected [questions, words] "
                f"twice, [questions, {views}regions, features], and the same without the features"
            )
        for name, mask in (("questions without a word", question_mask), ("photographs without a region", region_mask)):
            empty = ~mask.flatten(0, -2).any(-1)
            if empty.any():
                raise ValueError(
                    f"the batch has {name}, at places {empty.nonzero().flatten().tolist()}; leave them out"
                )
