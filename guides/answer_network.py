"""Inference network of visual question answering: it sees the answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["AnswerNetwork"]


class AnswerNetwork(nn.Module):
    r"""Scores of the regions, given question and answer.

    .. math:: \Phi_i = u^\top \tanh\big(U_1 (r_i \odot \mathrm{ReLU}(V_1 h_y)) +
              U_2 (\tilde x \odot \mathrm{ReLU}(V_2 h_y))\big)

    The answer's vector ``h_y`` is an embedding; of soft scores it is the mean embedding by their weight. The question
    :math:`\tilde x` is that of the model, whose network it shares without owning it. It is called with the arguments of
    the model; for ``Amortised(AnswerNetwork(...), Categorical())``.

    Args:
        features: Width of a region's features.
        answers: Number of answers.
        question: Makes vectors ``[B, hidden]`` of ids and mask, such as the model's ``encode_question``.
        regions: Makes features ``[B, N, features]`` of regions and mask, such as the model's ``encode_regions``; the
            regions are taken as they are when omitted.
        hidden: Width of these vectors and of the hidden layer.
        embedding: Width of an answer's vector.

    Raises:
        ValueError: At a call: no answer to see.

    Example:
        >>> network = AnswerNetwork(4, 3, question=lambda words, mask: torch.ones(1, 8), hidden=8, embedding=5)
        >>> words, regions = torch.tensor([[5, 2]]), torch.randn(1, 6, 4)
        >>> network(words, words > 0, regions, torch.ones(1, 6, dtype=torch.bool), torch.tensor([2])).shape
        torch.Size([1, 1, 6])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 4.
    """

    def __init__(
        self,
        features: int,
        answers: int,
        *,
        question: Callable[[Tensor, Tensor], Tensor],
        regions: Callable[[Tensor, Tensor], Tensor] | None = None,
        hidden: int,
        embedding: int = 256,
    ) -> None:
        super().__init__()
        self.encode_question, self.encode_regions = question, regions
        self.answer = nn.Embedding(answers, embedding)
        self.gate_region, self.gate_question = nn.Linear(embedding, features), nn.Linear(embedding, hidden)
        self.region, self.asked = nn.Linear(features, hidden), nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(
        self,
        question: Tensor,
        question_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[B, 1, N]`` of every region; arguments of the model's call."""
        if answer is None:
            raise ValueError("the inference network needs answer: it looks at what was answered")
        vector = self._answer(answer)
        asked = self.encode_question(question, question_mask) * self.gate_question(vector).relu()
        if self.encode_regions is not None:
            regions = self.encode_regions(regions, region_mask)
        seen = regions * self.gate_region(vector).relu().unsqueeze(-2)
        hidden = (self.region(seen) + self.asked(asked).unsqueeze(-2)).tanh()
        return torch.as_tensor(self.out(hidden).transpose(-1, -2))

    def _answer(self, answer: Tensor) -> Tensor:
        if not answer.is_floating_point():
            return torch.as_tensor(self.answer(answer))
        shares = answer / answer.sum(-1, keepdim=True).clamp_min(torch.finfo(answer.dtype).tiny)
        return shares @ self.answer.weight
