"""Inference networks of latent alignment: they see the word to be aligned and what follows it, or the answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pyro_attention.layers.scores import Bilinear
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout


class _InferenceNetwork(nn.Module):
    r"""A bilinear score :math:`\Phi_{ji} = (U h_j) \cdot x_i` of the parts x of the source and the words of the target.

    Its h is a bidirectional LSTM over the whole target. The network is called with the arguments of the model; for
    ``Amortized(network, Categorical())``.

    Args:
        target_embedding: Word vectors of the target; give those of the model to share them.
        hidden: Width of each LSTM, both directions together, and of what stands for a part of the source.
        layers: Layers of each LSTM.
        dropout: Dropout of the network's inputs and between the layers.

    Raises:
        ValueError: At a call: no target to see.
    """

    target_embedding: nn.Embedding
    target: nn.LSTM
    score: Bilinear
    dropout: Dropout

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """What stands for the parts of the source, ``[B, N, hidden]``."""
        raise NotImplementedError

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Return scores ``[B, M, 1, N]`` of every part of the source for every target word.

        Arguments are those of the model's call.
        """
        if target_out is None or target_mask is None:
            raise ValueError("the inference network needs target_out and target_mask: it looks at the whole target")
        keys = self.keys(source, source_mask)
        queries = encode_sequence(self.target, self.dropout(self.target_embedding(target_out)), target_mask)
        scores: Tensor = self.score(queries, keys)
        return scores.unsqueeze(-2)


class AlignmentNetwork(_InferenceNetwork):
    """For translation: a bidirectional LSTM over the words of the source, whose embedding may be the model's too.

    Example:
        >>> network = AlignmentNetwork(nn.Embedding(9, 4), nn.Embedding(9, 4), hidden=6)
        >>> source, target = torch.randint(9, (2, 5)), torch.randint(9, (2, 3))
        >>> network(source, source >= 0, target, target, target >= 0).shape
        torch.Size([2, 3, 1, 5])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.2 and appendix A.
    """

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        *,
        hidden: int,
        layers: int = 2,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.source = _lstm(source_embedding.embedding_dim, hidden, layers, dropout)
        self.target = _lstm(target_embedding.embedding_dim, hidden, layers, dropout)
        self.score = Bilinear(hidden, hidden)
        self.dropout = Dropout(dropout)

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        return encode_sequence(self.source, self.dropout(self.source_embedding(source)), source_mask)


class RegionNetwork(_InferenceNetwork):
    """For captioning: a network of two linear maps for each region, whose features have the width ``features``.

    Example:
        >>> network = RegionNetwork(7, nn.Embedding(9, 4), hidden=6)
        >>> regions, target = torch.randn(2, 5, 7), torch.randint(9, (2, 3))
        >>> network(regions, torch.ones(2, 5, dtype=torch.bool), target, target, target >= 0).shape
        torch.Size([2, 3, 1, 5])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, appendix B, for regions in place of words.
    """

    def __init__(
        self, features: int, target_embedding: nn.Embedding, *, hidden: int, layers: int = 1, dropout: float = 0.3
    ) -> None:
        super().__init__()
        self.target_embedding = target_embedding
        self.dropout = Dropout(dropout)
        self.region = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), self.dropout, nn.Linear(hidden, hidden))
        self.target = _lstm(target_embedding.embedding_dim, hidden, layers, dropout)
        self.score = Bilinear(hidden, hidden)

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        return self.region(source)


class AnswerNetwork(nn.Module):
    r"""Scores of the regions, given question and answer.

    .. math:: \Phi_i = u^\top \tanh\big(U_1 (r_i \odot \mathrm{ReLU}(V_1 h_y)) +
              U_2 (\tilde x \odot \mathrm{ReLU}(V_2 h_y))\big)

    The answer's vector ``h_y`` is an embedding; of soft scores it is the mean embedding by their weight. The question
    :math:`\tilde x` is that of the model, whose network it shares without owning it. It is called with the arguments of
    the model; for ``Amortized(AnswerNetwork(...), Categorical())``.

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


def _lstm(width: int, hidden: int, layers: int, dropout: float) -> nn.LSTM:
    options = {"batch_first": True, "bidirectional": True, "dropout": dropout if layers > 1 else 0.0}
    return nn.LSTM(width, hidden // 2, layers, **options)
