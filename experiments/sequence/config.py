"""Options that translation and captioning share, and those of headlines and pretraining."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.options import BatchOptions, Dropout
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import AMORTISED, AlignmentSchemeOptions, SchemeOptions, UsedBy

if TYPE_CHECKING:
    pass

Schedule = Literal["plateau", "one-cycle"]


@dataclass(frozen=True, kw_only=True)
class TextEncoderOptions(BatchOptions, SchemeOptions):
    """A Transformer with latent attention that reads texts, and how it is trained.

    Args:
        vocabulary: Word pieces at most.
        width: Width of a piece's vector.
        heads: Heads of every attention.
        layers: Layers.
        normalizer: How attention is normalised.
        hybrid_share: Share of doubly normalised attention that hybrid begins with.
        sweeps: Times that sinkhorn normalises over the queries and over the keys.
        length: Pieces of a text at most; the rest is cut off.
        dropout: Dropout of embeddings, attention weights and layers.
        kl_weight: Weight of the KL, which is summed over all attention weights of a text.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
    """

    vocabulary: PositiveInt = 4000
    width: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 2
    normalizer: NormalizerName = "softmax"
    hybrid_share: ClosedUnitInterval = 0.5
    sweeps: PositiveInt = 5
    length: PositiveInt = 64
    dropout: Dropout = 0.1
    guide: WeightsSchemeName = "soft"
    kl_weight: NonNegativeFloat = 1e-3
    num_samples: PositiveInt = 10

    planned = True  # the learning rate is, over all epochs
    USED_BY: ClassVar[UsedBy] = {
        "hybrid_share": {"normalizer": ("hybrid",)},
        "sweeps": {"normalizer": ("sinkhorn",)},
    }


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(BatchOptions, AlignmentSchemeOptions):
    """Train a network that writes sentences, and whose attention is latent.

    Args:
        vocabulary: Word pieces at most.
        hidden: Width of the networks.
        beam: Live hypotheses of the beam search; 1 is greedy.
        input_feed: What the decoder goes on with: the expected context, or that of the drawn alignment (not for schemes
            with an inference network or that sum alignments out).
        warm_start: Epochs at first without the inference network: q = p, Jensen's bound; for dirichlet. Give
            posterior_from_prior too, or the network, which is untrained then, pulls the model away.
        posterior_from_prior: The inference network starts at q = p and learns what to add; for init_from, and for
            warm_start.
        init_from: Folder of a finished run whose network (not its guide) to start from, and whose vocabulary to use.
        embedding: Width of a word vector.
        init_range: Initial weights are uniform up to so much, as in the paper (0.1); PyTorch's own when omitted.
        dropout: Dropout of word vectors, inside the networks and before the output.
        schedule: How the learning rate goes: plateau halves it after epochs without a better validation loss; one-cycle
            plans it over all epochs, up for a tenth of the steps and then down to zero, which takes fewer epochs.
        patience: Epochs without a better validation loss before training stops.
        length_penalty: Exponent of the length penalty of the beam search.
        no_repeat: The beam search repeats no so many word pieces in a row; it may when omitted.
    """

    vocabulary: PositiveInt = 4000
    hidden: PositiveInt = 128
    beam: PositiveInt = 5
    input_feed: Literal["expected", "sampled"] = "expected"
    warm_start: NonNegativeInt = 0
    posterior_from_prior: bool = False
    init_from: Path | None = None
    embedding: PositiveInt = 64
    init_range: PositiveFloat | None = None
    dropout: Dropout = 0.1
    schedule: Schedule = "plateau"
    patience: PositiveInt = 5
    length_penalty: NonNegativeFloat = 1.0
    no_repeat: PositiveInt | None = None

    USED_BY: ClassVar[UsedBy] = {name: {"guide": AMORTISED} for name in ("warm_start", "posterior_from_prior")}

    @property
    def planned(self) -> bool:
        """Whether the learning rate is planned over all epochs."""
        return self.schedule == "one-cycle"
