"""LaplacePosterior: closed-form Bayesian linear regression, sums by hand, draws of guides and models, coverage."""

import warnings

import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    LaplacePosterior,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.draws import BroadcastWarning
from tests.helpers import assert_mean
from tests.toy_models import SelfAttention, Sequences

NOISE, PRIOR = 0.5, 2.0


def regression(items=40, width=3):
    x = torch.randn(items, width, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)[:width] + NOISE * torch.randn(items).double()


def linear(x, y):
    """The posterior mode of a linear regression, its loss, and the precision of the closed form."""
    precision = x.T @ x / NOISE**2 + torch.eye(x.size(1)) / PRIOR**2
    net = nn.Linear(x.size(1), 1, bias=False).double()
    net.weight.data = torch.linalg.solve(precision, x.T @ y / NOISE**2).unsqueeze(0)
    return net, lambda x, y: (net(x).squeeze(-1) - y).square().sum() / (2 * NOISE**2), precision


def test_linear_regression_is_exact():
    x, y = regression()
    net, loss, precision = linear(x, y)
    batches = list(zip(x.split(15), y.split(15), strict=True))
    posterior = LaplacePosterior(net, "weight", loss, batches, prior_scale=PRIOR)
    expected = torch.linalg.inv(precision)
    torch.testing.assert_close(posterior.covariance, expected)
    assert torch.equal(posterior.mean, net.weight.detach().flatten())
    draws = torch.stack([posterior.sample()["weight"].flatten() for _ in range(4000)])
    assert_mean(draws, posterior.mean)
    centered = draws - posterior.mean
    assert_mean(centered.unsqueeze(-1) * centered.unsqueeze(-2), expected)


@pytest.mark.parametrize("items", [2, 40])
def test_fisher_is_the_sum_of_squared_gradients(items):
    x, y = regression(items)
    net, loss, _ = linear(x, y)
    batches = list(zip(x.split(1), y.split(1), strict=True))
    posterior = LaplacePosterior(net, ["w*"], loss, batches, prior_scale=PRIOR, curvature="fisher")
    slopes = (net(x) - y.unsqueeze(1)).detach() * x / NOISE**2
    expected = torch.linalg.inv(slopes.T @ slopes + torch.eye(3) / PRIOR**2)
    torch.testing.assert_close(posterior.covariance, expected)
    draws = torch.stack([posterior.sample()["weight"].flatten() for _ in range(4000)]) - posterior.mean
    assert_mean(draws.unsqueeze(-1) * draws.unsqueeze(-2), expected)


def test_curvature_of_several_parameters_is_torchs():
    net, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double(), torch.randn(30, 2).double()
    y = net(x).squeeze(-1).detach()  # a minimum

    def of(first, last):
        values = {"0.weight": first, "2.weight": last}
        return (torch.func.functional_call(net, values, x).squeeze(-1) - y).square().sum()

    posterior = LaplacePosterior(
        net, ["0.weight", "2.w*"], lambda x, y: (net(x).squeeze(-1) - y).square().sum(), [(x, y)], prior_scale=0.05
    )
    blocks = torch.func.hessian(of, argnums=(0, 1))(net[0].weight.detach(), net[2].weight.detach())
    rows = [torch.cat([block.flatten(2).flatten(0, 1) for block in row], 1) for row in blocks]
    expected = torch.linalg.inv(torch.cat(rows) + torch.eye(9) / 0.05**2)
    torch.testing.assert_close(posterior.covariance, expected)


def query_posterior(family=None, **options):
    """The posterior of the matrices of the queries in a model of two layers."""
    data, model = Sequences.random(), SelfAttention(dropout=0.0)
    guide = AttentionGuide(model, family or Soft())
    names = [name for name, value in model.named_parameters() if "layers.0" in name and "prior" not in name]
    loss = AttentionELBO(kl_weight=0.0)(model, guide)
    posterior = LaplacePosterior(model, names[:1], loss, [(data.x, data.y)], prior_scale=0.3, **options)
    return posterior, guide, (data.x,), model


@pytest.fixture(scope="module")
def queries():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is trained here
        return query_posterior()


def test_every_run_of_a_guide_has_a_draw_of_its_own(queries):
    posterior, guide, args, _ = queries
    assert sample_posterior(guide, *args, num_samples=20, seed=0)["layers.0"].std(0).max() < 1e-6
    options = {"num_samples": 20, "seed": 0}
    samples = sample_posterior(posterior(guide), *args, **options)["layers.0"]
    assert (samples.std(0) > 0).all()
    assert samples[1:].ne(samples[:-1]).flatten(1).any(1).all()
    assert torch.equal(samples, sample_posterior(posterior(guide), *args, **options)["layers.0"])
    around = poutine.condition(posterior(guide), data={})
    assert torch.equal(samples, sample_posterior(around, *args, **options)["layers.0"])
    assert (predict(posterior(guide), *args, num_samples=20).variance > 0).any()


def test_draws_of_parameters_and_of_weights_add_up(queries):
    posterior, soft, args, model = queries
    random = AttentionGuide(model, Weibull(10.0))
    variance = {
        name: sample_posterior(guide, *args, num_samples=100, seed=1)["layers.0"].var(0).mean()
        for name, guide in {"both": posterior(random), "noise": random, "scores": posterior(soft)}.items()
    }
    assert variance["both"] > max(variance["noise"], variance["scores"])


def test_parameters_come_back(queries):
    posterior, _, _, model = queries
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), posterior, posterior:
        raise KeyError
    chosen = posterior.sample().keys()
    with posterior:
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == chosen
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_of_torch_nn():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    x, y = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    posterior = LaplacePosterior(
        layer, "self_attn.in_proj_weight", lambda x, y: (layer(x) - y).square().sum(), zip(x, y, strict=True),
        curvature="fisher",
    )  # fmt: skip
    drawn = posterior(layer)
    assert not torch.equal(drawn(x), drawn(x))
    assert torch.equal(layer(x), layer(x))


def test_negative_curvature_has_the_width_of_the_prior():
    net = nn.Linear(2, 1, bias=False)
    loss = lambda: (torch.tensor([8.0, -3.0]) * net.weight.square()).sum() / 2  # noqa: E731
    with pytest.warns(UserWarning, match="1 of 2 directions curve downwards"):
        posterior = LaplacePosterior(net, "weight", loss, [()])
    torch.testing.assert_close(posterior.covariance, torch.diag(torch.tensor([1 / 9, 1.0]).double()))


@pytest.mark.parametrize(("prior_scale", "warns"), [(10.0, True), (0.1, False)])
def test_a_negative_curvature_counts_where_it_changes_a_width(prior_scale, warns):
    """Against the prior's precision, which is 0.01 or 100."""
    net = nn.Linear(2, 1, bias=False)
    loss = lambda: (torch.tensor([8.0, -0.5]) * net.weight.square()).sum() / 2  # noqa: E731
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = LaplacePosterior(net, "weight", loss, [()], prior_scale=prior_scale)
    assert ["positive definite" in str(warning.message) for warning in caught] == [True] * warns
    expected = torch.tensor([1 / (8 + prior_scale**-2), prior_scale**2]).double()
    torch.testing.assert_close(posterior.covariance, torch.diag(expected))


def test_a_linear_loss_leaves_the_prior():
    net = nn.Linear(2, 1)
    posterior = LaplacePosterior(net, "*", lambda: net.weight.sum() + net.bias.sum(), [()], prior_scale=3.0)
    torch.testing.assert_close(posterior.covariance, 9 * torch.eye(3).double())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": "query.*"}, r"no name matches 'query\.\*'; the names in the module are '0.weight', '0.bias'"),
        ({"parameters": []}, "no pattern is given"),
        ({"parameters": ["0.*", "1.*"]}, "'1.weight' is frozen"),
        ({"width": 2001}, r"choose 2002 parameters, whose curvature takes 4008004 numbers .* curvature='fisher'"),
        ({"batches": []}, "batches are empty"),
        ({"scale": float("nan")}, "the loss is nan"),
        ({"parameters": ["0.*", "2.*"]}, "does not depend on '2.weight'"),
    ],
)
def test_bad_input(change, message):
    options = {"parameters": "0.*", "batches": [()]} | change
    scale, width = options.pop("scale", 1.0), options.pop("width", 2)
    net = nn.Sequential(nn.Linear(width, 1), nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1))
    loss = lambda: scale * (net[0].weight.square().sum() + net[0].bias.square().sum())  # noqa: E731
    with pytest.raises(ValueError, match=message):
        LaplacePosterior(net, loss=loss, **options)


def test_a_loss_that_is_no_number():
    net = nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"the loss gave shape \(5, 1\), expected one number"):
        LaplacePosterior(net, "*", net, [(torch.ones(5, 2),)])


# losses that are no sum over items, batches of several items, draws that share their parameters


def means(name):
    """Losses of a linear regression, and how they take a batch: a mean, wherever it is taken."""
    net = nn.Linear(3, 1, bias=False).double()
    x, y = regression(41)
    losses = {
        "mean": (lambda x, y: (net(x).squeeze(-1) - y).square().mean(), [(x, y)]),
        "mean in batches": (
            lambda x, y: (net(x).squeeze(-1) - y).square().mean(), [(x[:20], y[:20]), (x[20:], y[20:])],
        ),
        "a default of torch": (lambda x, y: nn.functional.mse_loss(net(x).squeeze(-1), y), [(x, y)]),
        "classes": (
            lambda x, y: nn.functional.cross_entropy(torch.cat([net(x), -net(x)], 1), (y > 0).long()), [(x, y)],
        ),
        "a dict": (lambda data: (net(data["x"]).squeeze(-1) - data["y"]).square().mean(), [({"x": x, "y": y},)]),
        "with a constant": (lambda x, y, scale: scale * (net(x).squeeze(-1) - y).square().mean(), [(x, y, 3.0)]),
        "with noise": (lambda x, y: (net(x).squeeze(-1) - y + 0.05 * torch.randn(len(y))).square().mean(), [(x, y)]),
    }  # fmt: skip
    return net, *losses[name]


@pytest.mark.parametrize(
    "name", ["mean", "mean in batches", "a default of torch", "classes", "a dict", "with a constant", "with noise"]
)
@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_a_mean_is_refused(name, curvature):
    net, loss, batches = means(name)
    with pytest.raises(ValueError, match=r"of \d+ items is the mean of the losses of its halves .* it is a mean over"):
        LaplacePosterior(net, "weight", loss, batches, curvature=curvature)


def test_a_loss_that_plates_scale_to_all_data():
    """It is right for all data in one batch, whose halves would be scaled too; of several batches each has all."""
    data, model = Sequences.random(batch=6), SelfAttention(size=6)
    model.eval()
    loss = AttentionELBO(kl_weight=0.0)(model, AttentionGuide(model, Soft()))
    name, options = "layers.0.q_proj.weight", {"curvature": "fisher", "prior_scale": 0.3}
    LaplacePosterior(model, name, loss, [(data.x, data.y)], **options)
    halves = [(data.x[part], data.y[part]) for part in (slice(3), slice(3, 6))]
    with pytest.raises(ValueError, match=r"plates scale it to all of the data \(size=\)"):
        LaplacePosterior(model, name, loss, halves, **options)


@pytest.mark.parametrize("items", [2, 20])
def test_several_items_in_a_batch_of_fisher_are_refused(items):
    x, y = regression(40)
    net, loss, _ = linear(x, y)
    batches = list(zip(x.split(items), y.split(items), strict=True))
    with pytest.raises(ValueError, match=rf"a batch has {items} items .* expected one item a batch .*x.split\(1\)"):
        LaplacePosterior(net, "weight", loss, batches, curvature="fisher")


@pytest.mark.filterwarnings("ignore:the Hessian is not positive definite")
@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("items", [2, 3, 40, 200])
def test_sums_are_taken(items, noise):
    """Also with noise, with a constant that is no item's, and where the loss itself is nearly zero."""
    for seed in range(8):
        torch.manual_seed(seed)
        x, y = regression(items)
        net, _, _ = linear(x, y)
        base = (net(x).squeeze(-1) - y).square().sum().item()
        for constant in (0.0, 100.0 * items, -base):  # the last makes the loss zero

            def loss(x, y, net=net, constant=constant):
                noisy = net(x).squeeze(-1) - y + noise * torch.randn(len(y))
                return noisy.square().sum() + constant * len(y) / items ** (constant > 0)

            LaplacePosterior(net, "weight", loss, [(x, y)])


def test_what_has_no_halves_is_taken():
    """A graph whose edges belong to all of its nodes, one item, and a sequence that is one item under Fisher."""
    x, edges = torch.randn(6, 3), torch.tensor([[0, 5, 3], [5, 2, 1]])
    net = nn.Linear(3, 1, bias=False)
    LaplacePosterior(net, "weight", lambda x, edges: (net(x)[edges[0]] - net(x)[edges[1]]).square().sum(), [(x, edges)])
    layer, rows = nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(2, 5, 4)
    LaplacePosterior(
        layer,
        "in_proj_weight",
        lambda x: layer(x, x, x)[0].square().sum(),
        [(row,) for row in rows],
        curvature="fisher",
    )


def test_the_draws_of_a_random_loss_are_the_same_as_without_the_check(monkeypatch):
    x, y = regression()
    net, _, _ = linear(x, y)
    build = lambda: LaplacePosterior(  # noqa: E731
        net, "weight", lambda x, y: ((net(x).squeeze(-1) - y) * torch.randn(len(y))).square().sum(), [(x, y), (x, y)]
    )
    checked = build().covariance
    monkeypatch.setattr("pyro_attention.posterior.laplace.check_sum", lambda *_, **__: None)
    assert torch.equal(checked, build().covariance)


@pytest.mark.parametrize("draw", [sample_posterior, predict])
def test_each_draw_has_parameters_of_its_own(queries, draw):
    posterior, _, args, model = queries
    random = AttentionGuide(model, Weibull(10.0))
    for guide in (posterior(random), poutine.condition(posterior(random), data={})):
        for num_samples in (2, 9):
            options = {"num_samples": num_samples, "seed": 0}
            with warnings.catch_warnings():  # said once of a guide
                warnings.simplefilter("ignore", BroadcastWarning)
                chunks = draw(guide, *args, chunk_size=3, **options)
            single = draw(guide, *args, **options)
            if draw is predict:
                torch.testing.assert_close(chunks.mean, single.mean)
            else:  # the outputs are drawn in single runs alone, so that the random numbers are others
                assert all((rows[1:] != rows[:-1]).flatten(1).any(1).all() for rows in chunks.values())
    with pytest.warns(BroadcastWarning, match="would share one draw of the parameters of a LaplacePosterior"):
        draw(posterior(AttentionGuide(model, Weibull(10.0))), *args, num_samples=4, chunk_size=3)
    with posterior:  # one draw of the parameters for all is what this says
        draw(random, *args, num_samples=4, chunk_size=3)


def coverage(items, seed):
    """Share of true weights in 90 % intervals where scores q'Mk are learned from items, as in experiments.coverage."""
    generator = torch.Generator().manual_seed(seed)
    form, queries, keys, values, noise = (
        torch.randn(*shape, generator=generator).double()
        for shape in ((4, 4), (items + 500, 4), (items + 500, 6, 4), (items, 6, 3), (items, 3))
    )
    net = nn.Linear(4, 4, bias=False).double()
    nn.init.zeros_(net.weight)

    def weights(queries, keys, form=net):
        return (keys @ form(queries).unsqueeze(-1)).squeeze(-1).softmax(-1)

    def loss(queries, keys, values, y):
        return ((weights(queries, keys).unsqueeze(1) @ values).squeeze(1) - y).square().sum() / (2 * 0.5**2)

    true = weights(queries, keys, lambda queries: queries @ (0.5 * form))
    y = (true[:items].unsqueeze(1) @ values).squeeze(1) + 0.5 * noise
    data = queries[:items], keys[:items], values, y
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def step():
        optimizer.zero_grad()
        total = loss(*data) + net.weight.square().sum() / 2  # with the prior
        total.backward()
        return total

    optimizer.step(step)
    posterior = LaplacePosterior(net, "weight", loss, [data])
    with torch.no_grad():
        draws = torch.stack([posterior(weights)(queries[items:], keys[items:]) for _ in range(300)])
    low, high = draws.quantile(torch.tensor([0.05, 0.95]).double(), 0)
    return ((true[items:] >= low) & (true[items:] <= high)).double().mean()


@pytest.mark.filterwarnings("ignore:the Hessian is not positive definite")  # of few items, without the prior
@pytest.mark.parametrize(
    ("items", "problems"),
    [(100, 4), *(pytest.param(items, 24, marks=pytest.mark.slow) for items in (30, 100, 300, 1000, 5000))],
)
def test_intervals_hold_the_true_weights(items, problems):
    shares = torch.stack([coverage(items, seed) for seed in range(problems)])
    print(f"{items} items: {shares.mean():.3f} +- {shares.std() / problems**0.5:.3f}")
    slack = 0.0 if problems > 4 else 0.08  # about twice the standard error of four
    assert 0.85 - slack < shares.mean() < 0.94 + slack
