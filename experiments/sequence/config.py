"""Options that translation and captioning share, and options that headlines and pretraining share."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.options import BatchOptions, Dropout, VocabularySize
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import AMORTIZED, AlignmentSchemeOptions, SchemeOptions, UsedBy

Schedule = Literal["plateau", "one-cycle"]


@dataclass(frozen=True, kw_only=True)
class TextEncoderOptions(BatchOptions, SchemeOptions):
    """Options of a Transformer encoder with latent attention, and of its training.

    Args:
        vocabulary: Largest number of word pieces, at least 260.
        width: Width of the vector of a word piece.
        heads: Heads of every attention layer.
        layers: Number of layers.
        normalizer: How attention weights are normalized.
        hybrid_share: Initial share of doubly normalized attention in hybrid attention.
        sweeps: How many times sinkhorn normalizes over the queries and over the keys.
        length: Largest number of word pieces of a text; the rest is cut off.
        dropout: Dropout of embeddings, attention weights and layers.
        kl_weight: Weight of the KL, which is summed over all attention weights of a text.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
    """

    vocabulary: VocabularySize = 4000
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

    planned = True  # the schedule of the learning rate spans all epochs
    USED_BY: ClassVar[UsedBy] = {
        "hybrid_share": {"normalizer": ("hybrid",)},
        "sweeps": {"normalizer": ("sinkhorn",)},
    }


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(BatchOptions, AlignmentSchemeOptions):
    """Options of a network with latent attention that writes sentences, and of its training.

    Args:
        vocabulary: Largest number of word pieces, at least 260.
        hidden: Width of the networks.
        beam: Live hypotheses of the beam search; 1 is greedy.
        input_feed: Context that the decoder continues with: the expected context, or the context of the drawn
            alignment. The latter is not available for schemes that sum alignments out or have an inference network.
        warm_start: Number of first epochs without the inference network, with q = p (Jensen's bound); for dirichlet.
            Combine it with posterior_from_prior; otherwise the untrained network pulls the model away afterwards.
        posterior_from_prior: Start the inference network at q = p, so that it learns a correction to the prior. Use it
            with init_from and with warm_start.
        init_from: Folder of a finished run. The network (not the guide) starts from the weights of that run, and its
            vocabulary is used.
        embedding: Width of a word vector.
        init_range: Initial weights are uniform between minus and plus this number (0.1 in the paper); PyTorch's
            default initialization when omitted.
        dropout: Dropout of word vectors, inside the networks and before the output layer.
        schedule: Schedule of the learning rate. plateau halves it after epochs without a better validation loss;
            one-cycle raises it for a tenth of the steps and then lowers it to zero, which takes fewer epochs.
        patience: Epochs without a better validation loss before training stops.
        no_repeat: No sequence of this many word pieces occurs twice in an output of the beam search; repetitions are
            allowed when omitted.
    """

    vocabulary: VocabularySize = 4000
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
    no_repeat: PositiveInt | None = None

    USED_BY: ClassVar[UsedBy] = {name: {"guide": AMORTIZED} for name in ("warm_start", "posterior_from_prior")}

    @property
    def planned(self) -> bool:
        """Whether the schedule of the learning rate spans all epochs, so that their number is fixed."""
        return self.schedule == "one-cycle"
