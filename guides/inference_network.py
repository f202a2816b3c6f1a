"""Inference networks of latent alignment: they see the word that is to be aligned, and what follows it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_attention import Bilinear
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout

__all__ = ["AlignmentNetwork", "RegionNetwork"]


class _InferenceNetwork(nn.Module):
    r"""A bilinear score :math:`\Phi_{ji} = (U h_j) \cdot x_i` of the parts x of the source and the words of the target.

    Its h is a bidirectional LSTM over the whole target. The network is called with the arguments of the model; for
    ``Amortised(network, Categorical())``.

    Args:
        target_embedding: Word vectors of the target; give those of the model to share them.
        hidden: Width of each LSTM, both directions together, and of what stands for a part of the source.
        layers: Layers of each LSTM.
        dropout: Dropout of the network's inputs and between the layers.

    Raises:
        ValueError: An odd width; at a call: no target to see.
    """

    target_embedding: nn.Embedding
    target: nn.LSTM
    score: Bilinear
    dropout: Dropout
    null: nn.Parameter | None

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
        """Scores ``[B, M, 1, N]`` of every part of the source for every target word; ``1 + N`` with NULL.

        Arguments are those of the model's call.
        """
        if target_out is None or target_mask is None:
            raise ValueError("the inference network needs target_out and target_mask: it looks at the whole target")
        keys = self.keys(source, source_mask)
        if self.null is not None:
            keys = torch.cat([self.null.to(keys.dtype).expand(len(keys), 1, -1), keys], 1)
        queries = encode_sequence(self.target, self.dropout(self.target_embedding(target_out)), target_mask)
        scores: Tensor = self.score(queries, keys)
        return scores.unsqueeze(-2)


class AlignmentNetwork(_InferenceNetwork):
    """For translation: a bidirectional LSTM over the words of the source, whose embedding may be the model's too.

    With a ``null_word`` the first score of every target word is that of NULL, as in a model that has one.

    Example:
        >>> import torch
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
        null_word: bool = False,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.source = _lstm(source_embedding.embedding_dim, hidden, layers, dropout)
        self.target = _lstm(target_embedding.embedding_dim, hidden, layers, dropout)
        self.score = Bilinear(hidden, hidden)
        self.dropout = Dropout(dropout)
        self.null = nn.Parameter(torch.zeros(hidden)) if null_word else None

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        return encode_sequence(self.source, self.dropout(self.source_embedding(source)), source_mask)


class RegionNetwork(_InferenceNetwork):
    """For captioning: a network of two linear maps for each region, whose features have the width ``features``.

    Example:
        >>> import torch
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
        self.null = None

    def keys(self, source: Tensor, source_mask: Tensor) -> Tensor:
        return self.region(source)


def _lstm(width: int, hidden: int, layers: int, dropout: float) -> nn.LSTM:
    if hidden % 2:
        raise ValueError(f"hidden is {hidden}, expected an even width: half for each direction")
    options = {"batch_first": True, "bidirectional": True, "dropout": dropout if layers > 1 else 0.0}
    return nn.LSTM(width, hidden // 2, layers, **options)
