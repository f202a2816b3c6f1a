"""Encoder-decoder for translation, whose alignment is a latent variable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from models.decoder import AttentionDecoder, DecoderSizes, DecoderState, InputFeed, Step
from models.temporal import TemporalNormalizer
from pyro_attention import AlignmentPrior, LatentAttention, TokenLikelihood
from pyro_attention.families.base import Prior
from pyro_attention.layers.scores import Additive, Bilinear
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout


@dataclass(frozen=True)
class TranslationSizes(DecoderSizes):
    """Sizes of a translation network.

    Attributes:
        layers: Layers of encoder and decoder.
    """

    layers: int = 2


PAPER = TranslationSizes(embedding=512, memory=1024, decoder=768, attention=512)


class Translation(AttentionDecoder):
    r"""Translation network with a bidirectional LSTM encoder, an LSTM decoder, and an alignment of each target word.

    .. math:: p(y, z \mid x) = \prod_j p(z_j \mid x, y_{<j})\, p(y_j \mid z_j, x, y_{<j}), \qquad
              p(y_j \mid z_j, x, y_{<j}) = \mathrm{softmax}\bigl(W \tanh(U_q q_j + U_c\, m_{z_j})\bigr)

    Here m are the encoded source words and q the states of the decoder. Under a Gamma or LogNormal prior the decoder
    reads the context of random weights instead of :math:`m_{z_j}`. The sites, the input feed, and the other arguments
    and errors are described in :class:`AttentionDecoder`.

    Args:
        source_vocabulary: Number of source tokens.
        target_vocabulary: Number of target tokens.
        sizes: Widths and layers; :data:`PAPER` has those of the paper.
        scores: Scores of the attention: "mlp" as in the paper, or "bilinear", which does as well there.
        dropout: Dropout of word vectors, between the layers, and before the output layer.
        prior: Prior of the attention; see :class:`AttentionDecoder`.
        init_range: Initial weights are uniform between minus and plus this number; 0.1 in the paper.
        input_feed: Context that the decoder is fed with; see :class:`AttentionDecoder`.
        normalizer: Normalizer over the previous words; see :class:`AttentionDecoder`.

    Raises:
        ValueError: The width of the memory is odd; at a call, as :class:`AttentionDecoder` says.

    Example:
        >>> from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source, target = torch.randint(10, (2, 5)), torch.randint(12, (2, 4))
        >>> real = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
        >>> loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
        >>> loss(source, real[0], target, target, real[1]).dim()
        0

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5 and appendix A.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        sizes: TranslationSizes | None = None,
        scores: Literal["mlp", "bilinear"] = "mlp",
        dropout: float = 0.3,
        prior: Prior | None = None,
        init_range: float | None = None,
        input_feed: InputFeed = "expected",
        normalizer: TemporalNormalizer | None = None,
    ) -> None:
        sizes = TranslationSizes() if sizes is None else sizes
        if sizes.memory % 2:
            raise ValueError(f"memory is {sizes.memory}, expected an even width, half of it for each direction")
        super().__init__(input_feed, normalizer)
        self.layers = sizes.layers
        self.source_embedding = nn.Embedding(source_vocabulary, sizes.embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, sizes.embedding)
        between = dropout if sizes.layers > 1 else 0.0
        self.encoder = nn.LSTM(
            sizes.embedding, sizes.memory // 2, sizes.layers, batch_first=True, bidirectional=True, dropout=between
        )
        widths = [sizes.embedding + sizes.memory] + [sizes.decoder] * (sizes.layers - 1)
        self.decoder = nn.ModuleList([nn.LSTMCell(width, sizes.decoder) for width in widths])
        self.score = (
            Additive(sizes.decoder, sizes.memory, sizes.attention)
            if scores == "mlp"
            else Bilinear(sizes.decoder, sizes.memory)
        )
        self.attention = LatentAttention("alignment", AlignmentPrior() if prior is None else prior)
        # two layers instead of one, so that an enumerated context is not repeated for every word
        self.from_query = nn.Linear(sizes.decoder, sizes.decoder)
        self.from_context = nn.Linear(sizes.memory, sizes.decoder, bias=False)
        self.output = nn.Linear(sizes.decoder, target_vocabulary)
        self.dropout = Dropout(dropout)
        self.init_uniform(init_range)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the encoded source words ``[B, N, memory]``, with zeros at the padding."""
        return encode_sequence(self.encoder, self.dropout(self.source_embedding(source)), source_mask)

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Return the distribution of the next word.

        Args:
            queries: Outputs of the decoder, ``[..., decoder]``.
            context: Contexts, ``[..., memory]``.
        """
        features = self.from_context(context)
        features = self.from_query(queries) + features
        return TokenLikelihood(self.dropout(features.tanh()), self.output.weight, self.output.bias)

    def embed(self, words: Tensor) -> Tensor:
        """Return the vectors ``[..., embedding]`` of target words."""
        return self.dropout(self.target_embedding(words))

    def advance(self, state: DecoderState, word: Tensor) -> Step:
        """Return the step of the decoder after a word, fed with the last context, and its attention scores."""
        rows = state.context.shape[:-1]
        below, cells = torch.cat([word.expand(*rows, -1), state.context], -1), []
        for cell, (hidden, memory) in zip(self.decoder, state.cells, strict=True):
            # LSTM cells take matrices only
            after = cell(below.flatten(0, -2), [part.expand(*rows, -1).flatten(0, -2) for part in (hidden, memory)])
            cells.append(tuple(part.unflatten(0, rows) for part in after))
            below = self.dropout(cells[-1][0]) if len(cells) < len(self.decoder) else cells[-1][0]
        return Step(replace(state, cells=tuple(cells)), below, self.scores(state, below))

    def feed(self, state: DecoderState, queries: Tensor, context: Tensor) -> DecoderState:
        """Return the state whose context is part of the next step's input."""
        return replace(state, context=context)
