"""
A first model and three guides
==============================

In this tutorial you write a small model with attention, train it with three different guides, and look at how sure
each of them is of its attention weights.

A *model* says how the data come about. A *guide* says what we believe about the attention weights after training.
You write the model once. Then you exchange the guide, and nothing else changes.
"""

import matplotlib.pyplot as plt
import pyro
import torch
from torch import nn

# %%
# The data
# --------
#
# A sentence has five words, and each word is a vector of eight numbers. One word of each sentence is *marked*: its
# first number is large. The second number of the marked word decides on the class of the sentence. So a model that
# solves the task has to look at the marked word.


def make_sentences(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words ``[count, 5, 8]``, classes ``[count]``, and the places of the marked words ``[count]``."""
    words, marked = 0.5 * torch.randn(count, 5, 8), torch.randint(5, (count,))
    classes, rows = torch.randint(2, (count,)), torch.arange(count)
    words[rows, marked, 0] += 2.0
    words[rows, marked, 1] = 2.0 * classes - 1.0
    return words, classes, marked


words, classes, marked = make_sentences(256)

# %%
# The model
# ---------
#
# The model is an ordinary PyTorch module that also is a Pyro model: it calls ``pyro.sample`` for the observed class.
# ``LatentAttention`` is the layer whose weights are random. It needs scores, values, and, for a prior that reads the
# keys, the keys. The sentences lie in a plate, because they are independent of each other.
#
# The model returns the logits. This is what ``predict`` averages later.

from pyro.distributions import Categorical

from pyro_attention import ContextualGammaPrior, LatentAttention


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(0.1 * torch.randn(8))
        self.attention = LatentAttention("attention", ContextualGammaPrior(key_dim=8))
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        with pyro.plate("sentences", len(x)):
            keys = x.unsqueeze(-3)  # one head: [sentences, 1, words, 8]
            scores = (keys @ self.query).unsqueeze(-2)  # one query: [sentences, 1, 1, words]
            context = self.attention(scores, keys, keys=keys).context
            logits = self.out(context[..., 0, 0, :])
            pyro.sample("y", Categorical(logits=logits), obs=y)
        return logits


# %%
# Three guides
# ------------
#
# ``Soft()`` is ordinary attention: the weights have no uncertainty. ``Weibull`` and ``LogNormal`` are posterior
# distributions over the weights. Their spread is trained here, because we say ``learnable=True``. Under this objective
# it follows from the prior and the weight of the KL, which we choose. The page :doc:`/concepts/widths` shows how the
# data can tell it.
#
# ``AttentionELBO`` is the objective. Given a model and a guide it becomes an ordinary PyTorch module, whose output is
# the loss. It is the negative log-likelihood of the data plus the KL of the attention weights, of which a network has
# many: with ``kl_weight=1``, the default, the KL would be larger than the rest. 0.02 keeps it smaller. A training in
# which the KL outweighs the data warns at its first step, and names a weight.

from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, Soft, Weibull

families = {
    "Soft": Soft(),
    "Weibull": Weibull(concentration=5.0, learnable=True),
    "LogNormal": LogNormal(scale=0.3, learnable=True),
}
guides, losses = {}, {}
for name, family in families.items():
    torch.manual_seed(0)  # the same initial network for all
    guide = AttentionGuide(Reader(), family)
    loss = AttentionELBO(kl_weight=0.02)(guide.model, guide)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    losses[name] = []
    for _ in range(200):
        optimizer.zero_grad()
        value = loss(words, classes)
        value.backward()
        optimizer.step()
        losses[name].append(value.item() / len(words))
    guides[name] = guide

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, values in losses.items():
    axis.plot(values, label=name)
axis.set(xlabel="training step", ylabel="loss per sentence in nats", title="Training of three guides")
axis.legend()

# %%
# The losses of different guides are not comparable with each other: those of ``Weibull`` and ``LogNormal`` hold a KL
# term, and that of ``Soft`` does not. Compare predictions on new data instead, as below.
#
# Predictions
# -----------
#
# ``predict`` draws weights from the posterior, runs the model with each draw, and averages the outputs.

from pyro_attention import predict

test_words, test_classes, test_marked = make_sentences(500)
for name, guide in guides.items():
    prediction = predict(guide, test_words, num_samples=50, transform=lambda logits: logits.softmax(-1), seed=0)
    accuracy = (prediction.mean.argmax(-1) == test_classes).float().mean()
    nll = -prediction.mean[torch.arange(500), test_classes].log().mean()
    print(f"{name:10s} accuracy {accuracy:.3f}   negative log-likelihood {nll:.3f}")

# %%
# Posterior samples of the weights
# --------------------------------
#
# ``sample_posterior`` returns the drawn weights themselves, with the samples in the first dimension. We take one
# sentence and show the mean weight of every word with its 90 % credible interval: nine of ten draws lie inside it.

from pyro_attention import sample_posterior
from pyro_attention.analysis import credible_intervals

figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), sharey=True, layout="constrained")
for axis, (name, guide) in zip(axes, guides.items(), strict=True):
    samples = sample_posterior(guide, test_words[:1], num_samples=200, seed=0)["attention"]
    bands = credible_intervals(samples[:, 0, 0], level=0.9)  # of [200, queries, words]
    mean, low, high = bands.mean[0], bands.low[0], bands.high[0]
    colors = ["#c2410c" if place == test_marked[0] else "#64748b" for place in range(5)]
    axis.bar(range(5), mean, color=colors, alpha=0.7)
    axis.vlines(range(5), low, high, color="black")
    axis.set(title=name, xlabel="word", xticks=range(5))
axes[0].set_ylabel("attention weight")
figure.suptitle("Weights of one sentence: mean and 90 % interval of 200 draws")

# %%
# The marked word is orange. Under ``Soft`` the interval is a point. Under the other two guides the interval says how
# far the weight may be from its mean.
#
# One warning belongs here. These guides compute the posterior of the weights from the words alone; they do not see the
# class of the sentence. So the intervals say how sure the network is of where to look *before* it sees the answer. The
# page :doc:`/concepts/posterior` explains what the posterior conditions on, and the tutorial
# :doc:`6_against_nuts` compares a guide with the exact posterior.
#
# Two marked words
# ----------------
#
# What does the model say of a sentence that is ambiguous? We mark two words that stand for different classes.

odd = 0.5 * torch.randn(1, 5, 8)
odd[0, 1, :2], odd[0, 3, :2] = torch.tensor([2.0, 1.0]), torch.tensor([2.0, -1.0])
for name, guide in guides.items():
    prediction = predict(
        guide, odd, num_samples=200, transform=lambda logits: logits.softmax(-1), quantiles=[0.05, 0.95], seed=0
    )
    low, high = (prediction.quantiles[q][0, 1].item() for q in (0.05, 0.95))
    print(f"{name:10s} probability of class 1: {prediction.mean[0, 1]:.2f}, 90 % interval {low:.2f} to {high:.2f}")

# %%
# Ordinary attention is certain of one class, though the sentence is ambiguous. The other two guides choose the same
# class, and are less certain of it.
#
# Your turn
# ---------
#
# How do the intervals change where the marked word is hard to tell from the others? Change ``+= 2.0`` in
# ``make_sentences`` to ``+= 1.0``, run the script again, and compare the bars with those above.
