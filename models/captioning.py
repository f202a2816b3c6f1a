"""Captioning of images by an LSTM whose cell input comes from a latent attention to the regions of an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from models.decoder import AttentionDecoder, DecoderSizes, DecoderState, Step
from pyro_attention import AlignmentPrior, LatentAttention, TokenLikelihood
from pyro_attention.families.base import Prior
from pyro_attention.layers.scores import Additive
from pyro_attention.ops.noise import Dropout


class Captioning(AttentionDecoder):
    r"""Captioning network with an LSTM whose cell input is the attended region, as in Att2in.

    .. math:: p(y, z \mid r) = \prod_j p(z_j \mid r, y_{<j})\, \mathrm{softmax}(W\, o_j \tanh c_j)_{y_j}, \qquad
              c_j = f_j c_{j-1} + i_j \max(g_j + U r_{z_j},\ g'_j + U' r_{z_j})

    The gates :math:`i_j, f_j, o_j` and the inputs :math:`g_j, g'_j` depend on the last word and the previous state, and
    so do the scores. (Rennie et al. score by the state alone, which has not seen the last word.) A drawn region acts
    only on its own word: the word is read from the cell with the drawn region, while the state advances with the
    expected one. The alignments are hence independent given the previous words. Plates, sites, other arguments and
    errors are described in :class:`AttentionDecoder`.

    The regions are a set: their order has no effect, unless the features contain positions.

    Args:
        features: Width of a region's features.
        vocabulary: Number of tokens.
        sizes: Widths of the layers.
        dropout: Dropout of word vectors, of embedded regions, and before the output layer.
        prior: Prior of the attention; a contextual prior reads the embedded regions.
        init_range: Initial weights are uniform between minus and plus this number.
        input_feed: Context that the decoder is fed with; see :class:`AttentionDecoder`.

    Example:
        >>> from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
        >>> model = Captioning(4, 12, sizes=DecoderSizes(8, 8, 8, 8))
        >>> regions, words = torch.randn(2, 5, 4), torch.randint(12, (2, 3))
        >>> real = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
        >>> loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
        >>> loss(regions, real[0], words, words, real[1]).dim()
        0

    Source: Rennie et al. (2017), Self-Critical Sequence Training for Image Captioning, section 2 (Att2in); its latent
    attention: Xu et al. (2015), Show, Attend and Tell, section 4; Fan et al. (2020), Bayesian Attention Modules, 4.3.
    """

    def __init__(
        self,
        features: int,
        vocabulary: int,
        *,
        sizes: DecoderSizes | None = None,
        dropout: float = 0.3,
        prior: Prior | None = None,
        init_range: float | None = None,
        input_feed: Literal["expected", "sampled"] = "expected",
    ) -> None:
        super().__init__(input_feed)
        sizes = DecoderSizes() if sizes is None else sizes
        self.dropout = Dropout(dropout)
        self.region = nn.Sequential(
            nn.Linear(features, sizes.memory),
            nn.ReLU(),
            self.dropout,
            nn.Linear(sizes.memory, sizes.memory),
            # regions of the size of word vectors are learned faster; otherwise the words outweigh them at first
            nn.LayerNorm(sizes.memory),
        )
        self.embedding = nn.Embedding(vocabulary, sizes.embedding)
        self.from_word = nn.Linear(sizes.embedding, 5 * sizes.decoder)
        self.from_state = nn.Linear(sizes.decoder, 5 * sizes.decoder, bias=False)
        self.from_context = nn.Linear(sizes.memory, 2 * sizes.decoder, bias=False)
        self.score = Additive(sizes.decoder + sizes.embedding, sizes.memory, sizes.attention)
        self.attention = LatentAttention("alignment", AlignmentPrior() if prior is None else prior)
        self.output = nn.Linear(sizes.decoder, vocabulary)
        self.init_uniform(init_range)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the embedded regions ``[B, N, memory]``, with zeros at the padding."""
        memory: Tensor = self.region(source)
        return memory.where(source_mask.unsqueeze(-1), 0)

    def embed(self, words: Tensor) -> Tensor:
        """Return the vectors ``[..., embedding]`` of words."""
        return self.dropout(self.embedding(words))

    def advance(self, state: DecoderState, word: Tensor) -> Step:
        """Return the step after a word, whose queries ``[B, 6 decoder]`` are gate inputs and the previous cell."""
        ((hidden, cell),) = state.cells
        queries = torch.cat([self.from_word(word) + self.from_state(hidden), cell], -1)
        return Step(state, queries, self.scores(state, torch.cat([hidden, word.expand(*hidden.shape[:-1], -1)], -1)))

    def feed(self, state: DecoderState, queries: Tensor, context: Tensor) -> DecoderState:
        """Return the state whose cell includes the context."""
        return replace(state, cells=(self._finish(queries, context),), context=context)

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Return the distribution of the next word, from the cell with this context."""
        hidden, _ = self._finish(queries, context)
        return TokenLikelihood(self.dropout(hidden), self.output.weight, self.output.bias)

    def _finish(self, queries: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state ``[..., decoder]``."""
        width = self.output.in_features
        enter, forget, leave, inside, cell = queries.split([width, width, width, 2 * width, width], -1)
        first, second = (inside + self.from_context(context)).chunk(2, -1)
        # the maximum of two, as by Rennie et al.: a tanh that words saturate would hide the region
        cell = forget.sigmoid() * cell + enter.sigmoid() * torch.maximum(first, second)
        return leave.sigmoid() * cell.tanh(), cell
