"""Inference networks of latent alignments, which read the whole target sentence or the answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pyro_attention.layers.scores import Bilinear
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout


class _InferenceNetwork(nn.Module):
    r"""Base class of inference networks with bilinear scores between target words and source positions.

    .. math:: q(z_j \mid x, y) = \mathrm{softmax}(\Phi_j), \qquad \Phi_{ji} = (U h_j) \cdot x_i

    h is a bidirectional LSTM over the whole target, and x are the encoded source positions. The network is called with
    the arguments of the model. Use it in ``Amortized(network, Categorical())``.

    Args:
        target_embedding: Embedding of target words; pass that of the model to share it.
        hidden: Width of each LSTM, both directions together, and of an encoded source position.
        layers: Layers of each LSTM.
        dropout: Dropout of the inputs and between the layers.

    Raises:
        ValueError: The width is odd; at a call, the target is missing.
    """

    target_embedding: nn.Embedding
    target: nn.LSTM
    score: Bilinear
    dropout: Dropout

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the encoded source positions, ``[B, N, hidden]``."""
        raise NotImplementedError

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Return scores ``[B, M, 1, N]`` of the N source positions for the M target words.

        The arguments are those of the model's call.
        """
        if target_out is None or target_mask is None:
            raise ValueError("target_out or target_mask is missing; the inference network reads the whole target")
        keys = self.keys(source, source_mask)
        queries = encode_sequence(self.target, self.dropout(self.target_embedding(target_out)), target_mask)
        scores: Tensor = self.score(queries, keys)
        return scores.unsqueeze(-2)


class AlignmentNetwork(_InferenceNetwork):
    """Inference network of translation, with a bidirectional LSTM over the source words.

    Args:
        source_embedding: Embedding of source words; pass that of the model to share it.
        target_embedding: Embedding of target words; pass that of the model to share it.
        hidden: Width of each LSTM, both directions together.
        layers: Layers of each LSTM.
        dropout: Dropout of the inputs and between the layers.

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
    """Inference network of captioning, with a feed-forward network of two layers for each region.

    Args:
        features: Width of the features of a region.
        target_embedding: Embedding of words; pass that of the model to share it.
        hidden: Width of the LSTM, both directions together, and of an encoded region.
        layers: Layers of the LSTM.
        dropout: Dropout of the inputs and between the layers.

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
    r"""Inference network of visual question answering, which scores the regions given question and answer.

    .. math:: q(z \mid x, r, y) = \mathrm{softmax}(\Phi), \qquad \Phi_i = u^\top \tanh\big(U_1 (r_i \odot
    \mathrm{ReLU}(V_1 h_y)) +
              U_2 (\tilde x \odot \mathrm{ReLU}(V_2 h_y))\big)

    The vector :math:`h_y` of the answer is an embedding, or for soft scores the mean embedding weighted by the scores.
    The encoded question :math:`\tilde x` comes from the network of the model, which is shared without being a
    submodule. The network is called with the arguments of the model. Use it in ``Amortized(AnswerNetwork(...),
    Categorical())``.

    Args:
        features: Width of the features of a region.
        answers: Number of answers.
        question: Maps ids and mask of a question to vectors ``[B, hidden]``, such as the model's ``encode_question``.
        regions: Maps regions and mask to features ``[B, N, features]``, such as the model's ``encode_regions``; the
            regions are used unchanged when omitted.
        hidden: Width of an encoded question and of the hidden layer.
        embedding: Width of the vector of an answer.

    Raises:
        ValueError: At a call, the answer is missing.

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
        """Return scores ``[B, 1, N]`` of every region; the arguments are those of the model's call."""
        if answer is None:
            raise ValueError("answer is missing; the inference network reads the answer")
        vector = self._answer(answer)
        asked = self.encode_question(question, question_mask) * self.gate_question(vector).relu()
        if self.encode_regions is not None:
            regions = self.encode_regions(regions, region_mask)
        gated = regions * self.gate_region(vector).relu().unsqueeze(-2)
        hidden = (self.region(gated) + self.asked(asked).unsqueeze(-2)).tanh()
        return torch.as_tensor(self.out(hidden).transpose(-1, -2))

    def _answer(self, answer: Tensor) -> Tensor:
        if not answer.is_floating_point():
            return torch.as_tensor(self.answer(answer))
        shares = answer / answer.sum(-1, keepdim=True).clamp_min(torch.finfo(answer.dtype).tiny)
        return shares @ self.answer.weight


def _lstm(width: int, hidden: int, layers: int, dropout: float) -> nn.LSTM:
    if hidden % 2:
        raise ValueError(f"hidden is {hidden}, expected an even width, half of it for each direction")
    options = {"batch_first": True, "bidirectional": True, "dropout": dropout if layers > 1 else 0.0}
    return nn.LSTM(width, hidden // 2, layers, **options)
