"""Attentional encoder-decoder for translation, whose alignment is a latent variable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from models.decoder import AttentionDecoder, DecoderSizes, DecoderState, InputFeed, Step
from models.score_terms import PROBABILITY, DiagonalBias, Jumps, NullWord, TemporalNormalizer
from pyro_attention import AlignmentPrior, LatentAttention, TokenLikelihood
from pyro_attention.families.base import Prior
from pyro_attention.families.sparse import SparseAlignmentPrior
from pyro_attention.layers.scores import Additive
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout

EncoderName = Literal["lstm", "words"]
PriorFrom = Literal["words", "place"]
WordsFrom = Literal["both", "context"]


@dataclass(frozen=True)
class TranslationSizes(DecoderSizes):
    """Sizes of the network.

    Attributes:
        layers: Layers of encoder and decoder.
    """

    layers: int = 2


PAPER = TranslationSizes(embedding=512, memory=1024, decoder=768, attention=512)


class Translation(AttentionDecoder):
    r"""Bidirectional LSTM encoder, LSTM decoder with input feed, one alignment for each target word.

    .. math:: z_j \sim p(z \mid x, y_{<j}), \qquad
              y_j \sim \mathrm{softmax}\bigl(W \tanh(U_q q_j + U_c\, m_{z_j})\bigr)

    Its sites, its other arguments and errors, and how the decoder is fed, are those of :class:`AttentionDecoder`.

    Args:
        source_vocabulary: Number of source tokens.
        target_vocabulary: Number of target tokens.
        sizes: Widths of the layers; :data:`PAPER` has those of the paper.
        dropout: Dropout of word vectors, between the layers, and before the output layer.
        init_range: 0.1 in the paper, for its sizes.
        words_from: What a word is read from: "both" decoder state and context, or the "context" alone, as in IBM's
            models. Then a word has to be explained by what it is aligned to, and the sum over alignments takes N rows
            of logits instead of M N.
        encoder: What stands for a source word: "lstm", states of the bidirectional LSTM, which tell of the words around
            it, or "words", a map of its own vector, so that nothing is known of a word but at its own place.
        prior_from: What an alignment prior knows: the source and the "words" before, or the "place" of both words
            alone, as in IBM's Model 2. Where words are read from the context alone, a prior that knows the words before
            looks for the source word that goes best with them, and so tells of the target language, not of translation.
        null_word: Words may be aligned to NULL, which stands for no source word: with the probability of fast_align
            where there is a ``diagonal``, else by a score as that of a word; so it is under a sparse prior, too, which
            would never look at something so improbable.

    Raises:
        ValueError: Jumps with a sparse prior, or where words are read from the state too.

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
        dropout: float = 0.3,
        prior: Prior | None = None,
        init_range: float | None = None,
        input_feed: InputFeed = "expected",
        normalizer: TemporalNormalizer | None = None,
        diagonal: DiagonalBias | None = None,
        words_from: WordsFrom = "both",
        encoder: EncoderName = "lstm",
        prior_from: PriorFrom = "words",
        null_word: bool = False,
        jumps: Jumps | None = None,
    ) -> None:
        sizes = TranslationSizes() if sizes is None else sizes
        scored = diagonal is None or isinstance(prior, SparseAlignmentPrior)
        null = NullWord(sizes.memory, None if scored else PROBABILITY) if null_word else None
        super().__init__(input_feed, normalizer, diagonal, null, jumps)
        if jumps is not None and (words_from == "both" or isinstance(prior, SparseAlignmentPrior)):
            raise ValueError("jumps do not go with words_from='both' or a sparse prior; use 'context' and a dense one")
        self.reads_state, self.prior_from = words_from == "both", prior_from
        # nothing else goes through the recurrent network
        self.layers = sizes.layers if self.reads_state or prior_from == "words" else 0
        self.source_embedding = nn.Embedding(source_vocabulary, sizes.embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, sizes.embedding)
        between = dropout if sizes.layers > 1 else 0.0
        if encoder == "lstm":
            self.encoder: nn.Module = nn.LSTM(
                sizes.embedding, sizes.memory // 2, sizes.layers, batch_first=True, bidirectional=True, dropout=between
            )
        else:
            self.encoder = nn.Sequential(nn.Linear(sizes.embedding, sizes.memory), nn.Tanh())
        widths = ([sizes.embedding + sizes.memory] + [sizes.decoder] * (sizes.layers - 1))[: self.layers]
        self.decoder = nn.ModuleList([nn.LSTMCell(width, sizes.decoder) for width in widths])
        self.score = Additive(sizes.decoder, sizes.memory, sizes.attention)
        self.attention = LatentAttention("alignment", AlignmentPrior() if prior is None else prior)
        # apart, so that an enumerated context is not repeated for every word
        self.from_query = nn.Linear(sizes.decoder, sizes.decoder) if self.reads_state else None
        self.from_context = nn.Linear(sizes.memory, sizes.decoder, bias=False)
        self.output = nn.Linear(sizes.decoder, target_vocabulary)
        self.dropout = Dropout(dropout)
        self.init_uniform(init_range)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Encoded source words ``[B, N, memory]``; zeros at the padding."""
        if isinstance(self.encoder, nn.LSTM):
            return encode_sequence(self.encoder, self.dropout(self.source_embedding(source)), source_mask)
        distinct, row = source.unique(return_inverse=True)  # a word has one dropout mask, wherever it stands
        memory: Tensor = self.encoder(self.dropout(self.source_embedding(distinct)))[row]
        return memory.where(source_mask.unsqueeze(-1), 0)

    def pieces(self, source: Tensor, source_mask: Tensor) -> Tensor | None:
        """The source words, where nothing else stands for them; -1 is NULL and -2 the padding."""
        if isinstance(self.encoder, nn.LSTM):
            return None
        ids = source.where(source_mask, -2)
        return ids if self.null_word is None else nn.functional.pad(ids, (1, 0), value=-1)

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Distribution of the next word from decoder outputs ``[..., decoder]`` and contexts ``[..., memory]``."""
        features = self.from_context(context)
        if self.from_query is not None:
            features = self.from_query(queries) + features
        return TokenLikelihood(self.dropout(features.tanh()), self.output.weight, self.output.bias)

    def embed(self, words: Tensor) -> Tensor:
        """Vectors ``[..., embedding]`` of target words."""
        return self.dropout(self.target_embedding(words))

    def advance(self, state: DecoderState, word: Tensor) -> Step:
        """The decoder's outputs, which are fed with the last context, and their attention scores."""
        rows = state.context.shape[:-1]
        if not self.layers:
            queries = state.context.new_zeros(*rows, self.output.in_features)
            return Step(state, queries, self.scores(state, queries))
        below, cells = torch.cat([word.expand(*rows, -1), state.context], -1), []
        for cell, (hidden, memory) in zip(self.decoder, state.cells, strict=True):
            # a cell takes matrices
            after = cell(below.flatten(0, -2), [part.expand(*rows, -1).flatten(0, -2) for part in (hidden, memory)])
            cells.append(tuple(part.unflatten(0, rows) for part in after))
            below = self.dropout(cells[-1][0]) if len(cells) < len(self.decoder) else cells[-1][0]
        return Step(replace(state, cells=tuple(cells)), below, self.scores(state, below))

    def scores(self, state: DecoderState, queries: Tensor) -> Tensor:
        """Attention scores ``[..., N]``; zeros for a prior of the places alone, to which the diagonal is added."""
        if self.prior_from == "place":
            return queries.new_zeros(*queries.shape[:-1], state.mask.size(-1))
        return super().scores(state, queries)

    def feed(self, state: DecoderState, queries: Tensor, context: Tensor) -> DecoderState:
        """The context is part of the next step's input."""
        return replace(state, context=context)
