"""Draw the figures of the README and of the concept pages, all from the library itself: ``make figures``."""

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import pyro  # noqa: E402
import torch  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from torch import nn  # noqa: E402

from pyro_attention import (  # noqa: E402
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionCall,
    AttentionGuide,
    Categorical,
    Dense,
    DoublyNormalized,
    FixedGammaPrior,
    LatentAttention,
    LogNormal,
    Marginal,
    Soft,
    Weibull,
    sample_posterior,
)
from pyro_attention.analysis import credible_intervals  # noqa: E402
from pyro_attention.families.lognormal import FixedLogNormalPrior  # noqa: E402
from pyro_attention.normalizers import Softmax  # noqa: E402

BLUE, ORANGE, GREY, GREEN = "#2563eb", "#c2410c", "#64748b", "#15803d"
SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
matplotlib.rcParams |= {"svg.hashsalt": "pyro_attention", "font.size": 10, "axes.spines.top": False}
matplotlib.rcParams |= {"axes.spines.right": False, "svg.fonttype": "path"}


def save(figure: Figure, name: str) -> None:
    """Write a picture whose bytes do not depend on the day; PNG where the name says so."""
    options = {"metadata": {"Date": None}} if name.endswith(".svg") else {"dpi": 130}
    figure.savefig(HERE / name, facecolor="white", **options)
    print(HERE / name)


def draws(family: object, scores: torch.Tensor = SCORES, prior: nn.Module | None = None) -> torch.Tensor:
    """Samples ``[1000, keys]`` of the weights of one query."""
    attention = LatentAttention("attention", FixedGammaPrior() if prior is None else prior)
    values = torch.zeros(1, scores.numel(), 1)
    guide = AttentionGuide(lambda: attention(scores.view(1, 1, -1), values).context, family)
    return sample_posterior(guide, num_samples=1000, seed=0)["attention"].view(1000, -1)


def bars(axis: object, samples: torch.Tensor, color: str) -> None:
    """Mean weights with their 90 % credible intervals."""
    found = credible_intervals(samples.unsqueeze(1), level=0.9)
    places = range(samples.size(1))
    axis.bar(places, found.mean[0], color=color, alpha=0.55)
    axis.vlines(places, found.low[0], found.high[0], color="black")
    axis.set(xticks=places, xlabel="key", ylim=(0, 1))


def weights() -> None:
    """One query, five keys: soft weights, three draws, and the distribution of the weights."""
    figure = Figure(figsize=(8.5, 2.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    bars(axes[0], draws(Soft()), GREY)
    axes[0].set(title="soft attention", ylabel="weight")
    samples = draws(Weibull(3.0))
    for place, sample in enumerate(samples[:3]):
        axes[1].bar([key + 0.27 * (place - 1) for key in range(5)], sample, width=0.25, label=f"draw {place + 1}")
    axes[1].set(title="three draws", xlabel="key", xticks=range(5))
    axes[1].legend(frameon=False)
    bars(axes[2], samples, BLUE)
    axes[2].set_title("1000 draws: mean, 90 %")
    save(figure, "weights.svg")


def normalizers() -> None:
    """Softmax leaves a key out; double normalization does not."""
    scores = torch.tensor([[3.0, 0.5, 0.0], [2.5, 0.0, 0.2], [3.0, 1.0, 0.0], [2.8, 0.3, 0.1]]).unsqueeze(0)
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, normalizer, title in zip(
        axes, (Softmax(), DoublyNormalized()), ("softmax", "doubly normalized"), strict=True
    ):
        found = normalizer(scores, Dense())[0]
        axis.imshow(found, cmap="Blues", vmin=0, vmax=1)
        for row in range(4):
            for column in range(3):
                ink = "white" if found[row, column] > 0.5 else "black"
                axis.text(column, row, f"{found[row, column]:.2f}", ha="center", va="center", color=ink, fontsize=9)
        sums = ", ".join(f"{total:.2f}" for total in found.sum(0))
        axis.set(title=title, xticks=range(3), yticks=range(4), xlabel=f"key (sums: {sums})", ylabel="query")
        axis.spines[:].set_visible(False)
    save(figure, "normalizers.svg")


def priors() -> None:
    """Prior distributions of the weights: fixed and contextual, weak and strong."""
    from pyro_attention.families.distribution import LogWeights
    from pyro_attention.families.gamma import GammaWeights

    context = SCORES.log_softmax(-1)

    def prior_draws(prior: LogWeights) -> torch.Tensor:
        pyro.set_rng_seed(0)
        return prior.rsample(torch.Size([1000])).softmax(-1).view(1000, -1)

    call = AttentionCall(scores=torch.zeros(1, 1, 5), layout=Dense())
    panels = {
        "fixed Gamma(1, 1)": FixedGammaPrior()(call),
        "fixed LogNormal(0, 1)": FixedLogNormalPrior()(call),
        "contextual Gamma, rate 1": GammaWeights(context.view(1, 1, -1), torch.tensor(0.0), shape=(1, 1, 5)),
        "contextual Gamma, rate 20": GammaWeights(
            (context + torch.tensor(20.0).log()).view(1, 1, -1), torch.tensor(20.0).log(), shape=(1, 1, 5)
        ),
    }
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for axis, (title, prior) in zip(axes.flat, panels.items(), strict=True):
        bars(axis, prior_draws(prior), ORANGE)
        axis.set_title(title)
    for axis in axes[0]:
        axis.set_xlabel("")
    figure.supylabel("weight: mean and 90 % interval of 1000 draws", fontsize=10)
    save(figure, "priors.svg")


def guides() -> None:
    """The same scores under several families and spreads."""
    families = {
        "Soft()": Soft(),
        "Weibull(50)": Weibull(50.0),
        "Weibull(10)": Weibull(10.0),
        "Weibull(2)": Weibull(2.0),
        "LogNormal(0.1)": LogNormal(0.1),
        "LogNormal(1.0)": LogNormal(1.0),
    }
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    axes = figure.subplots(2, 3, sharey=True, sharex=True).flatten()
    for axis, (title, family) in zip(axes, families.items(), strict=True):
        bars(axis, draws(family), BLUE)
        axis.set_title(title)
    for axis in axes[:3]:
        axis.set_xlabel("")
    figure.supylabel("weight: mean and 90 % interval of 1000 draws", fontsize=10)
    save(figure, "guides.svg")


class Between(nn.Module):
    """Scores on the way from the prior to the exact posterior of an alignment."""

    def __init__(self, prior: torch.Tensor, exact: torch.Tensor) -> None:
        super().__init__()
        self.prior, self.exact, self.share = prior, exact, 0.0

    def forward(self, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return (self.prior + self.share * (self.exact - self.prior)).view(1, 1, -1)


def objectives() -> None:
    """The ELBO of an alignment reaches the log evidence where the guide is the exact posterior."""
    attention, values = LatentAttention("z", AlignmentPrior()), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])

    def model(y: torch.Tensor) -> None:
        with pyro.plate("queries", 1):
            output = attention(SCORES.view(1, 1, -1), values.view(1, 1, -1, 1), layout=Dense(event_dim=2))
            mean = output.context.squeeze(-1).squeeze(-1)
            pyro.sample("y", pyro.distributions.Normal(mean, 0.7), obs=y)

    y, elbo = torch.tensor([3.0]), AlignmentELBO(max_plate_nesting=1)
    evidence = -elbo.loss(model, AttentionGuide(model, Marginal()), y)
    prior = SCORES.log_softmax(-1)
    exact = prior + pyro.distributions.Normal(values, 0.7).log_prob(y)
    network = Between(prior, exact)
    shares, found = [step / 20 for step in range(51)], []
    for network.share in shares:
        found.append(-elbo.loss(model, AttentionGuide(model, Amortized(network, Categorical())), y))
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.axhline(evidence, color=GREEN, label="log evidence: Marginal()")
    axis.plot(shares, found, color=BLUE, label="ELBO: Amortized(network, Categorical())")
    axis.plot(0, found[0], "o", color=ORANGE, label="guide equals prior: Categorical()")
    axis.set(xlabel="from the prior (0) to the exact posterior (1), and beyond", ylabel="nats")
    axis.legend(frameon=False, loc="lower right")
    save(figure, "objectives.svg")


def numbers(study: str, column: str) -> dict[str, float]:
    """Published numbers of a study, by row."""
    found = json.loads((HERE.parents[1] / "experiments" / "results" / f"{study}.json").read_text())
    return {
        next(iter(row["labels"].values())): float(row.get("mean", row.get("text", "nan")))
        for row in found["rows"]
        if row["column"] == column
    }


def believed() -> None:
    """The picture of the README: what can be had of the surest links, and whether intervals hold the true weights."""
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = {
        "IBM Model 1": "IBM Model 1", "eflomal": "eflomal",
        "eflomal, votes of 6 runs": "eflomal, six votes", "pyro-align": "pyro-align",
        "pyro-align + encoder": "pyro-align, encoder",
    }  # fmt: skip
    study = "aligners-europarl_de_en-19263"
    for column, color, shift in (("AER", GREY, -0.19), ("surest half", BLUE, 0.19)):
        values = numbers(study, column)
        places = [place + shift for place in range(len(names))]
        drawn = left.barh(places, [values[name] for name in names], height=0.36, color=color, label=column)
        left.bar_label(drawn, fmt="%.1f", padding=2, fontsize=8)
    left.set_yticks(range(len(names)), names.values())
    left.invert_yaxis()
    left.set(xlabel="wrong links, %", title="Word alignments: Europarl, 100 pairs", xlim=(0, 38))
    left.legend(
        ["all words (AER)", "the surest half of the words"],
        frameon=False,
        fontsize=8,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.4, -0.16),
    )
    rows = {
        "ensemble of five": "ensemble of five", "MC dropout": "MC dropout",
        "ELBO, Weibull k = 10, KL .001": "ELBO, Weibull 10", "ELBO, LogNormal 1, KL .001": "ELBO, LogNormal 1",
        "ELBO, learned width": "ELBO, learned width",
        "evidence": "evidence, learned width",
    }  # fmt: skip
    thirds = {"low spread": "#93b4f5", "middle spread": BLUE, "high spread": "#1e3a8a"}
    for number, (column, color) in enumerate(thirds.items()):
        values = numbers("coverage-noise", column)
        places = [place + 0.26 * (number - 1) for place in range(len(rows))]
        right.barh(places, [100 * values[name] for name in rows], height=0.25, color=color, label=column)
    right.axvline(90, color=ORANGE, linestyle="--", linewidth=1.2, label="as they should")
    right.set_yticks(range(len(rows)), rows.values())
    right.invert_yaxis()
    right.set(xlabel="intervals that hold the true weight, %", title="90 % intervals of weights", xlim=(0, 101))
    right.legend(
        frameon=False,
        fontsize=8,
        ncols=4,
        columnspacing=1,
        handlelength=1.2,
        loc="upper center",
        bbox_to_anchor=(0.35, -0.16),
    )
    save(figure, "believed.png")


def ranks() -> None:
    """What the page on checking an interval draws."""
    page: dict[str, object] = {"__name__": "page"}
    text = (HERE.parent / "how_to" / "check_an_interval.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M))
    exec(code.replace('figure.savefig("ranks.png")', ""), page)
    save(page["figure"], "ranks.png")


if __name__ == "__main__":
    for draw in (weights, normalizers, priors, guides, objectives, ranks, believed):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        draw()
