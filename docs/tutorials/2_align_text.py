"""
Align your own text and read its uncertainty
============================================

Which word of a sentence is translated by which word of the other language? Here the answer is a latent variable, the
*alignment*. In this tutorial you write your own aligner in about thirty lines, train it on a few sentence pairs, and
read how sure it is of each link.

For a full translation model, and for thousands of sentences, there are commands: see :doc:`/how_to/own_text`.
"""

import matplotlib.pyplot as plt
import pyro
import torch
from torch import nn

# %%
# The text
# --------
#
# Put your own pairs here: the sentence that is attended to on the left, its translation on the right. Words are divided
# at blanks.

pairs = [
    ("das haus ist klein", "the house is small"),
    ("das haus ist alt", "the house is old"),
    ("der hund ist klein", "the dog is small"),
    ("der hund schläft", "the dog sleeps"),
    ("die katze schläft", "the cat sleeps"),
    ("die katze ist alt", "the cat is old"),
    ("der mann sieht das haus", "the man sees the house"),
    ("der mann sieht den hund", "the man sees the dog"),
    ("die frau sieht die katze", "the woman sees the cat"),
    ("die frau ist jung", "the woman is young"),
    ("heute schläft der mann", "today the man sleeps"),
    ("heute sieht die frau den mann", "today the woman sees the man"),
    ("gestern sah die frau den hund", "yesterday the woman saw the dog"),
    ("gestern sah der mann die katze", "yesterday the man saw the cat"),
    ("ein kleiner hund schläft heute", "a small dog sleeps today"),
    ("ein alter mann sieht den jungen hund", "an old man sees the young dog"),
    ("eine junge frau sah das alte haus", "a young woman saw the old house"),
    ("die kleine katze sieht den alten hund", "the small cat sees the old dog"),
]

# %%
# Words become numbers. Every target word is one observation: it has its own row with all words of its source sentence,
# padded with zeros, and with the distance between the place of the target word and that of each source word.

sources = sorted({word for source, _ in pairs for word in source.split()})
targets = sorted({word for _, target in pairs for word in target.split()})
longest = max(len(source.split()) for source, _ in pairs)


def to_tensors(some_pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source words ``[T, N]``, distances ``[T, N]`` and target words ``[T]`` of all T target words."""
    rows, distances, observed = [], [], []
    for source, target in some_pairs:
        ids = [1 + sources.index(word) for word in source.split()]
        for place, word in enumerate(target.split()):
            rows.append(ids + [0] * (longest - len(ids)))
            distances.append([abs(place - other) for other in range(longest)])
            observed.append(targets.index(word))
    return torch.tensor(rows), torch.tensor(distances).float(), torch.tensor(observed)


data = to_tensors(pairs)
print(f"{len(data[0])} target words, {len(sources)} different source words, {len(targets)} different target words")

# %%
# The model
# ---------
#
# For each target word one source word is chosen, and the target word is drawn from what that source word translates
# to. The scores of the choice are the *prior*: before it has seen the target word, the model only knows that words of
# similar places belong together. ``AlignmentPrior`` makes a categorical distribution over the source words of them.
#
# ``Dense(mask, event_dim=2)`` says which words are no padding, and that each target word has its own alignment.

from pyro.distributions import Categorical as Observed

from pyro_attention import AlignmentPrior, Dense, LatentAttention


class Aligner(nn.Module):
    def __init__(self, prior: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 + len(sources), 32, padding_idx=0)
        self.attention = LatentAttention("alignment", prior)
        self.out = nn.Linear(32, len(targets))

    def forward(self, source, distance, target=None):
        pyro.module("aligner", self)
        with pyro.plate("words", len(source)):
            scores = (-distance / 3).unsqueeze(-2)  # [T, 1, N]: one head
            layout = Dense(mask=(source > 0).unsqueeze(-2), event_dim=2)
            values = self.embedding(source).unsqueeze(-3)  # [T, 1, N, 32]
            context = self.attention(scores, values, layout=layout).context.squeeze(-2)
            logits = self.out(context)
            pyro.sample("target", Observed(logits=logits), obs=target)
        return logits


# %%
# An inference network
# --------------------
#
# The alignment should depend on both words: the source word and the target word. So the posterior gets its scores from
# an *inference network*, which sees all arguments of the model, also the observed target word. It is wrapped by
# ``Amortized``.


class Inference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(1 + len(sources), 32)
        self.target = nn.Embedding(len(targets), 32)

    def forward(self, source, distance, target):
        match = (self.source(source) * self.target(target).unsqueeze(-2)).sum(-1) / 4
        return (match - distance / 3).unsqueeze(-2)


# %%
# Training
# --------
#
# ``Categorical`` is a posterior over which source word it is. There are few source words, so ``AlignmentELBO`` sums
# over all of them exactly; nothing is drawn during training.

from pyro_attention import AlignmentELBO, Amortized, AttentionGuide, Categorical


def train(guide, elbo, steps=300):
    loss = elbo(guide.model, guide)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(*data)
        value.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:3d}: {value.item() / len(data[0]):.3f} nats a word")


guide = AttentionGuide(Aligner(AlignmentPrior()), Amortized(Inference(), Categorical()))
train(guide, AlignmentELBO(max_plate_nesting=1))

# %%
# Prior and posterior of a sentence
# ---------------------------------
#
# The prior knows places only. The posterior has seen the target word. Compare them in a sentence whose word order
# differs between the languages.

from pyro_attention import sample_posterior

sentence = pairs[11]
source_words, target_words = sentence[0].split(), sentence[1].split()


def panel(axis, weights, title):
    axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(source_words)), source_words, rotation=60)
    axis.set_yticks(range(len(target_words)), target_words)
    axis.set_title(title)


one = to_tensors([sentence])
samples = sample_posterior(guide, *one, num_samples=500, seed=0)["alignment"].squeeze(-2)  # [500, words, N]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
prior = (-one[1][:, : len(source_words)] / 3).softmax(-1)
panel(axes[0], prior, "prior: places only")
panel(axes[1], samples.mean(0)[:, : len(source_words)], "posterior: the words, too")

# %%
# The verb stands in the second place in German and behind its subject in English; the posterior finds it. There are two
# articles, and both are translated by *the*, so the posterior hesitates between them.
#
# For a categorical alignment the posterior probability itself is the uncertainty: 1.0 means that the aligner is sure of
# a link, and values in between mean that it hesitates. The entropy says this for each word in one number, in nats; 0 is
# sure.

from pyro_attention.analysis import decompose_uncertainty

for word, entropy in zip(target_words, decompose_uncertainty(samples.mean(0)).total.tolist(), strict=True):
    print(f"{word:10s} {entropy:.2f}")

# %%
# The exact posterior
# -------------------
#
# The inference network is an approximation. Where all source words can be summed over, Bayes' rule gives the exact
# posterior of the trained model, without a network: ``exact_alignments`` computes it.

from pyro_attention import exact_alignments

exact = exact_alignments(guide.model, *one, max_plate_nesting=1)["alignment"].squeeze(-2)  # [words, N]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
panel(axes[0], samples.mean(0)[:, : len(source_words)], "inference network")
panel(axes[1], exact[:, : len(source_words)], "Bayes' rule")
print(f"largest difference of a probability: {(samples.mean(0) - exact).abs().max():.2f}")

# %%
# To store the links, choose one source word for each target word. ``str(hard_alignment(exact))`` is a line of Pharaoh's
# format, which other aligners read, too.

from pyro_attention.analysis import hard_alignment

for source_place, target_place in sorted(hard_alignment(exact).links, key=lambda link: link[1]):
    print(f"{target_words[target_place]:10s} {source_words[source_place]:10s} {exact[target_place, source_place]:.2f}")

# %%
# Every link has its probability, and those near 1 can be used as they are.
#
# Your turn
# ---------
#
# Of which words of another sentence is the posterior unsure? Change ``pairs[11]`` to ``pairs[15]``, or to a pair of
# your own that uses the same words, and look for entropies far from zero.
