"""The inference network of latent alignment: it sees the word that is to be aligned, and what follows it."""

from __future__ import annotations

from torch import Tensor, nn

from pyro_attention import Bilinear
from pyro_attention.ops.dropout import Dropout
from pyro_attention.ops.sequence import encode_sequence

__all__ = ["AlignmentNetwork"]


class AlignmentNetwork(nn.Module):
    r"""Two bidirectional LSTMs, over the source and over the whole target, and a bilinear score.

    .. math:: \Phi_{ji} = (U h_j) \cdot x_i, \qquad h = \mathrm{biLSTM}(y), \quad x = \mathrm{biLSTM}(x)

    It is called with the arguments of the translation model; for ``Amortised(AlignmentNetwork(...), Categorical())``.

    Args:
        source_embedding: Word vectors of the source; give those of the model to share them.
        target_embedding: Word vectors of the target, likewise.
        hidden: Width of each LSTM, both directions together.
        layers: Layers of each.
        dropout: Dropout of word vectors and between the layers.

    Raises:
        ValueError: An odd width; at a call: no target to see.

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
    ) -> None:
        super().__init__()
        if hidden % 2:
            raise ValueError(f"hidden is {hidden}, expected an even width: half for each direction")
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        options = {"batch_first": True, "bidirectional": True, "dropout": dropout if layers > 1 else 0.0}
        self.source = nn.LSTM(source_embedding.embedding_dim, hidden // 2, layers, **options)
        self.target = nn.LSTM(target_embedding.embedding_dim, hidden // 2, layers, **options)
        self.score = Bilinear(hidden, hidden)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[B, M, 1, N]`` of every source word for every target word; arguments are those of the model."""
        if target_out is None or target_mask is None:
            raise ValueError("the inference network needs target_out and target_mask: it looks at the whole target")
        keys = encode_sequence(self.source, self.dropout(self.source_embedding(source)), source_mask)
        queries = encode_sequence(self.target, self.dropout(self.target_embedding(target_out)), target_mask)
        scores: Tensor = self.score(queries, keys)
        return scores.unsqueeze(-2)
