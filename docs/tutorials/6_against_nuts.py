"""
Checking a posterior against NUTS
=================================

A guide is an approximation. Before you trust its intervals, compare it with the exact posterior of a small model. The
model is an ordinary Pyro model, so Hamiltonian Monte Carlo (NUTS) can draw from that posterior.
"""

import matplotlib.pyplot as plt
import pyro
import torch
from pyro.distributions import Normal
from pyro.infer import MCMC, NUTS

# %%
# A model that is small enough
# ----------------------------
#
# One query attends to three keys of the same score. Their values are 0, 1 and 2. We observe the context with a little
# noise: it is 1.6, so the query must have attended to the third key more than to the others.

from pyro_attention import Dense, LatentAttention
from pyro_attention.families.lognormal import FixedLogNormalPrior

attention = LatentAttention("attention", FixedLogNormalPrior())
scores, values = torch.zeros(1, 1, 3), torch.tensor([[[0.0], [1.0], [2.0]]])


def model(y=None):
    context = attention(scores, values).context.squeeze()
    pyro.sample("y", Normal(context, 0.2), obs=y)
    return context


y = torch.tensor(1.6)

# %%
# The exact posterior
# -------------------
#
# The site holds the logarithm of unnormalized weights. The layer's normalizer makes weights of it.

pyro.set_rng_seed(0)
mcmc = MCMC(NUTS(model), num_samples=400, warmup_steps=100, disable_progbar=True)
mcmc.run(y)
exact = attention.normalizer(mcmc.get_samples()["attention"], Dense())[:, 0, 0]
print("exact posterior mean of the weights:", [round(weight, 2) for weight in exact.mean(0).tolist()])

# %%
# A guide that does not see y
# ---------------------------
#
# By default a family reads the scores of the layer. These do not depend on ``y``: all three are equal here. So the
# guide answers another question: where does the query attend *before* we know the observation?

from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, sample_posterior

plain = AttentionGuide(model, LogNormal(scale=1.0))
blind = sample_posterior(plain, y, num_samples=400, seed=0)["attention"][:, 0, 0]
print("guide without y:", [round(weight, 2) for weight in blind.mean(0).tolist()])

# %%
# A guide that sees y
# -------------------
#
# ``Amortized`` takes the scores from a network that is called with the arguments of the model, so it sees ``y``. Here
# one linear layer is enough. We train it, and the spread of the posterior, too.

from pyro_attention import Amortized


class Inference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 3)

    def forward(self, y):
        return self.linear(y.reshape(1)).reshape(1, 1, 3)


guide = AttentionGuide(model, Amortized(Inference(), LogNormal(scale=1.0, learnable=True)))
loss = AttentionELBO(num_particles=10)(model, guide)
optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
for _ in range(300):
    optimizer.zero_grad()
    loss(y).backward()
    optimizer.step()
seeing = sample_posterior(guide, y, num_samples=400, seed=0)["attention"][:, 0, 0]
print("guide that sees y:", [round(weight, 2) for weight in seeing.mean(0).tolist()])

# %%
# Side by side
# ------------

figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
for axis, samples, title in zip(
    axes, (exact, seeing, blind), ("exact (NUTS)", "guide that sees y", "guide without y"), strict=True
):
    axis.violinplot(samples.numpy(), positions=[0, 1, 2], showmeans=True, showextrema=False)
    axis.set(title=title, xlabel="key", xticks=[0, 1, 2], ylim=(0, 1))
axes[0].set_ylabel("attention weight")

# %%
# The guide that sees ``y`` comes close to the mean. Its shape is not quite that of the exact posterior, because it
# treats the weights of a call as independent given the scores, and in truth they are not: they have to add up to a
# context near 1.6. We can measure the difference by what the draws say of the context.

for name, samples in (("exact", exact), ("guide that sees y", seeing), ("guide without y", blind)):
    context = samples @ values[0, :, 0]
    low, high = context.quantile(torch.tensor([0.05, 0.95])).tolist()
    print(f"{name:18s} context {context.mean():.2f}, 90 % interval {low:.2f} to {high:.2f}")

# %%
# If the interval of a guide is much wider or narrower than that of NUTS on a small version of your model, do not trust
# it on the large one. Alignments are discrete, so NUTS cannot draw them; they are summed out exactly by
# ``AlignmentELBO`` under ``Marginal``. A Dirichlet site is refused by NUTS, because its values lie on a simplex.
#
# Your turn
# ---------
#
# When is a guide that does not see ``y`` good enough? Change ``Normal(context, 0.2)`` to ``Normal(context, 2.0)``, so
# that ``y`` says little, and compare the three pictures again.
