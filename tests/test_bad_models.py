"""What is often done wrong with a model, its guide or its shapes: each is refused by name, and the remedy works."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormalMessenger
from pyro.nn import PyroModule
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EdgeList,
    EvidenceELBO,
    FixedGammaPrior,
    LaplacePosterior,
    LatentAttention,
    LogNormal,
    Marginal,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
    exact_alignments,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.integrations.torch_nn import bayesian
from tests.toy_models import SelfAttention, Sequences

ITEMS, WIDTH = 16, 8


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Network(PyroModule):
    """One number an item, by self-attention; ``change`` is what is done to its mean."""

    def __init__(self, change=lambda mean: mean, layer=None):
        super().__init__()
        self.attention = MultiheadAttention(WIDTH, 2) if layer is None else layer
        self.change = change

    def forward(self, x, y=None, padding=None):
        with pyro.plate("items", ITEMS):
            mean = self.change(self.attention(x, x, x, key_padding_mask=padding)[0].sum((-1, -2)))
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        return mean


def guide_of(model, family=None):
    return AttentionGuide(model, Weibull() if family is None else family)


x, y = torch.randn(ITEMS, 5, WIDTH), torch.randn(ITEMS)


# the guide, the model and their places


def test_a_class_in_the_place_of_a_model():
    with pytest.raises(TypeError, match=r"model is the class Network, expected an instance, such as Network\(...\)"):
        guide_of(Network)
    assert guide_of(Network())(x)["y"].shape == (ITEMS,)


def test_what_is_no_model():
    guide = guide_of(Network())
    for wrong, message in (
        (guide, r"model is a guide \(AttentionGuide\)"),
        (3, "model is a int, expected a Pyro model"),
    ):
        with pytest.raises(TypeError, match=message):
            guide_of(wrong)
    with pytest.raises(TypeError, match=r"exact_alignments takes the model, not a guide: give it guide\.model"):
        exact_alignments(guide, x)


@pytest.mark.parametrize(
    "elbo", [AttentionELBO(), EvidenceELBO(4), AlignmentELBO()], ids=lambda elbo: type(elbo).__name__
)
def test_guide_and_model_are_swapped(elbo):
    model = Network()
    guide = guide_of(model)
    for run in (elbo(guide, model), lambda *data: elbo.loss(guide, model, *data)):
        with pytest.raises(
            TypeError, match=r"the guide is the first argument, expected the model: elbo\(model, guide\)"
        ):
            run(x, y)
    (problem,) = check_model(guide, model, x, y, elbo=elbo).problems
    assert "the guide is the first argument" in problem


HANDLERS = {
    "scale": pyro.poutine.scale(scale=100.0),
    "mask": pyro.poutine.mask(mask=False),
    "block": pyro.poutine.block(hide=["y"]),
    "condition": pyro.poutine.condition(data={"y": torch.zeros(ITEMS)}),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_handlers_around_the_model_alone(handler):
    """The guide runs the model without them; around the guide, or around the model of the guide, they count."""
    model, elbo = Network(), AttentionELBO()
    guide = guide_of(model)
    message = rf"{type(handler).__name__} stands around the model.*put it around the guide"
    with pytest.raises(ValueError, match=message):
        elbo.loss(handler(model), guide, x, y)
    with pytest.raises(ValueError, match=message):
        elbo(handler(model), guide)(x, y)
    elbo.loss(handler(model), handler(guide), x, y)
    elbo.loss(handler(model), guide_of(handler(model)), x, y)
    elbo.loss(model, handler(guide), x, y)


@pytest.mark.parametrize("site", ["attention", "shift"])
def test_an_intervention_around_the_guide(site):
    """It sends the site through the guide once more, which would take its own posterior for the prior."""
    model = Network()

    def shifted(x, y=None):
        model(x, y) + pyro.sample("shift", dist.Normal(0.0, 1.0))

    guide = guide_of(shifted, {"attention": Weibull(), "shift": AutoNormalMessenger(shifted)})
    data = {"attention": torch.zeros(ITEMS, 2, 5, 5), "shift": torch.zeros(())}
    message = rf"site '{site}' passes the guide twice.*AttentionGuide\(poutine.do\(model, data\), families\)"
    with pytest.raises(ValueError, match=message):
        AttentionELBO().loss(shifted, pyro.poutine.do(guide, data={site: data[site]}), x, y)


@pytest.mark.parametrize(
    "run",
    [
        lambda guide: predict(guide, x, num_samples=3),
        lambda guide: sample_posterior(guide, x, num_samples=3),
        lambda guide: guide(x),
        lambda guide: AttentionELBO().loss(guide.model, guide, x, y),
    ],
    ids=["predict", "sample_posterior", "guide", "elbo"],
)
def test_a_network_that_nobody_made_bayesian(run):
    """predict gave a variance of zero."""
    plain = Network(layer=nn.MultiheadAttention(WIDTH, 2, batch_first=True))
    with pytest.raises(
        ValueError, match=r"the model Network has no attention site.*no site matches '\*'.*bayesian\(\)"
    ):
        run(guide_of(plain))
    remedy = bayesian(plain)
    assert (predict(guide_of(remedy), x, num_samples=30).variance > 0).all()


def test_attention_that_a_handler_replaces_is_no_mistake():
    model = SelfAttention(layers=1)
    data = Sequences.random()
    weights = torch.zeros(6, 2, 5, 5)
    done = pyro.poutine.do(model, data={"layers.0": weights})
    assert torch.equal(*(AttentionGuide(done, Weibull()).run(data.x).output for _ in range(2)))


# shapes


LOSSES = {
    "elbo": AttentionELBO(),
    "particles": AttentionELBO(num_particles=16, vectorize_particles=True),
    "evidence": EvidenceELBO(8),
    "evidence of as many draws as items": EvidenceELBO(ITEMS, max_plate_nesting=1),
}


@pytest.mark.parametrize("change", [lambda mean: mean, lambda mean: mean.unsqueeze(-1)], ids=["y", "y and its mean"])
@pytest.mark.parametrize("name", LOSSES)
def test_observations_in_a_column(name, change):
    """They would be compared with the mean of every other item."""
    elbo, model = LOSSES[name], Network(change)
    guide = guide_of(model)
    with pytest.raises(
        ValueError, match=r"site 'y': the observation has shape \(16, 1\), with 16 entries.*y.squeeze\(-1\)"
    ):
        elbo.loss(model, guide, x, y.unsqueeze(-1))
    remedy = Network()
    remedy.load_state_dict(model.state_dict())
    assert elbo.loss(remedy, guide_of(remedy), x, y) < float("inf")


@pytest.mark.parametrize("keys", [3, ITEMS])
def test_observations_in_a_column_below_an_alignment(keys):
    """Also where there are as many keys as items, so that the shapes fit by chance."""
    attention = LatentAttention("z", AlignmentPrior())

    def model(labels):
        with pyro.plate("items", ITEMS):
            scores, values = torch.zeros(ITEMS, 1, keys), torch.arange(keys)[None, :, None].float()
            mean = attention(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
            pyro.sample("y", dist.Normal(mean, 1.0), obs=labels)

    elbo = AlignmentELBO(max_plate_nesting=1)
    with pytest.raises(ValueError, match=r"site 'y': the observation has shape \(16, 1\)"):
        elbo.loss(model, guide_of(model, Marginal()), y.unsqueeze(-1))
    assert elbo.loss(model, guide_of(model, Marginal()), y) < float("inf")


def test_observations_that_do_stand_in_their_plates():
    """Events, several plates, one value for all items, and particles: none is refused."""

    def model(x, y, one, pairs):
        with pyro.plate("items", ITEMS, dim=-1):
            mean = layer(x, x, x)[0].mean(-2)
            pyro.sample("rows", dist.Normal(mean, 1.0).to_event(1), obs=y)
            pyro.sample("one", dist.Normal(mean.sum(-1), 1.0), obs=one)
            with pyro.plate("pairs", 3, dim=-2):
                pyro.sample("pair", dist.Normal(mean.sum(-1), 1.0), obs=pairs)
                pyro.sample("shared", dist.Normal(mean.sum(-1), 1.0), obs=pairs[:, :1])

    layer = MultiheadAttention(WIDTH, 2)
    data = x, torch.randn(ITEMS, WIDTH), torch.zeros(1), torch.randn(3, ITEMS)
    for elbo in (AttentionELBO(), AttentionELBO(num_particles=3, vectorize_particles=True)):
        assert elbo.loss(model, guide_of(model), *data) < float("inf")


def test_sequences_that_come_first():
    model = Network()
    message = r"site 'attention': its scores have 5 items at dimension -1 .*, expected 16, .*transpose\(0, 1\)"
    with pytest.raises(ValueError, match=message):
        guide_of(model)(x.transpose(0, 1))
    guide_of(model)(x.transpose(0, 1).transpose(0, 1))


def test_items_that_stand_at_another_dimension_than_their_plate():
    """The advice to open another plate would have built a model of 16 times 16 items."""
    model = Network(lambda mean: mean.squeeze(-1))
    message = r"the 16 items of plate 'items' at dimension -1 stand at dimension -2 of the batch \(16, 1\)"
    with pytest.raises(ValueError, match=message):
        AttentionELBO().loss(model, guide_of(model), x.unsqueeze(1), y)
    remedy = Network()
    assert AttentionELBO().loss(remedy, guide_of(remedy), x.unsqueeze(1).squeeze(1), y) < float("inf")


def test_numbers_that_are_missing_at_masked_keys():
    padding = torch.arange(5).expand(ITEMS, 5) >= 3
    bad = x.masked_fill(padding[..., None], torch.nan)
    model = Network()
    with pytest.raises(
        ValueError, match=r"put numbers in the place of padding \(x.masked_fill\(padding\[..., None\], 0\)\)"
    ):
        guide_of(model)(bad, y, padding)
    assert guide_of(model)(bad.masked_fill(padding[..., None], 0), y, padding)["attention"].isfinite().all()
    scores = torch.zeros(2, 3, 5).masked_fill(padding[0], torch.nan)
    attention = LatentAttention("read", FixedGammaPrior())
    with pytest.raises(ValueError, match="all of them at masked positions, whose features are NaN"):
        attention(scores, torch.randn(2, 5, 4), layout=Dense(~padding[0]))
    with pytest.raises(ValueError, match="check the features and the learning rate, and forbid positions by a mask"):
        attention(scores, torch.randn(2, 5, 4))


@pytest.mark.parametrize("prior", [AlignmentPrior(), SparseAlignmentPrior()], ids=str)
def test_alignments_in_a_layer_of_many_queries(prior):
    message = r"MultiheadAttention holds all queries and heads in one site.*use LatentAttention with layout=Dense\("
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(WIDTH, 2, prior=prior)
    with pytest.raises(ValueError, match="holds all queries and heads in one site"):
        bayesian(nn.MultiheadAttention(WIDTH, 2, batch_first=True), prior=lambda: prior)
    MultiheadAttention(WIDTH, 2, prior=DirichletPrior())


DENSE = Dense()
IN_PLATES = Dense(event_dim=2)
GRAPH = EdgeList.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)


@pytest.mark.parametrize(
    ("layout", "scores", "values", "message"),
    [
        (DENSE, (4, 1, 1, 3), (4, 3, 5), r"with heads = 1 or 1.*values.unsqueeze\(-3\)"),
        (DENSE, (4, 2, 6, 3), (4, 3, 5), "with heads = 2 or 1"),
        (DENSE, (7, 4, 2, 6, 3), (7, 4, 3, 5), "with heads = 2 or 1"),
        (IN_PLATES, (4, 1, 3), (4, 3, 5), "with heads = 1 or 1"),
        (IN_PLATES, (6, 4, 1, 3), (6, 4, 3, 5), "with heads = 1 or 1"),
        (DENSE, (4, 1, 1, 3), (4, 1, 2, 5), "with 3 keys"),
        (IN_PLATES, (4, 1, 3), (4, 1, 2, 5), "with 3 keys"),
        (DENSE, (4, 1, 1, 3), (3,), "with 3 keys"),
        (GRAPH, (3, 2), (3, 5), "with nodes = 3 and heads = 2 or 1"),
        (GRAPH, (7, 3, 2), (7, 3, 5), "with nodes = 3 and heads = 2 or 1"),
        (GRAPH, (3, 2), (4, 2, 5), "with nodes = 3 and heads = 2 or 1"),
    ],
)
def test_values_without_the_dimension_of_the_heads(layout, scores, values, message):
    """They broadcast: every item met the values of every other."""
    attention = LatentAttention("read", FixedGammaPrior())
    with pytest.raises(ValueError, match=r"site 'read': values of shape .* do not fit scores of shape .*" + message):
        attention(torch.zeros(scores), torch.zeros(values), layout=layout)


@pytest.mark.parametrize(
    ("layout", "scores", "values", "context"),
    [
        (DENSE, (4, 2, 6, 3), (4, 2, 3, 5), (4, 2, 6, 5)),
        (DENSE, (4, 2, 6, 3), (3, 5), (4, 2, 6, 5)),
        (DENSE, (4, 2, 6, 3), (1, 3, 5), (4, 2, 6, 5)),
        (DENSE, (9, 4, 2, 6, 3), (4, 2, 3, 5), (9, 4, 2, 6, 5)),
        (IN_PLATES, (4, 6, 1, 3), (4, 1, 1, 3, 5), (4, 6, 1, 5)),
        (GRAPH, (3, 2), (3, 1, 5), (3, 2, 5)),
    ],
)
def test_values_that_fit(layout, scores, values, context):
    attention = LatentAttention("read", FixedGammaPrior())
    assert attention(torch.zeros(scores), torch.zeros(values), layout=layout).context.shape == context


# objectives


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
def test_nothing_to_sum_out():
    model = Network()
    for family in (Weibull(), LogNormal()):
        with pytest.raises(ValueError, match=r"AlignmentELBO finds nothing to sum out.*use AttentionELBO, or elbo_for"):
            AlignmentELBO().loss(model, guide_of(model, family), x, y)
    AlignmentELBO().loss(model, guide_of(model, Soft()), x, y)


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_a_loss_that_reaches_no_parameter(curvature):
    net, batch = nn.Linear(3, 1), (torch.randn(1 if curvature == "fisher" else 2, 3),)
    for loss in (lambda x: x.square().sum(), lambda x: net(x).detach().sum()):
        with pytest.raises(ValueError, match="the loss depends on no parameter that requires a gradient"):
            LaplacePosterior(net, "weight", loss, [batch], curvature=curvature)


# below, what is asked of the exact sums


def alignment_model(scores, values, y, mask=None, **options):
    with pyro.plate("queries", len(y)), pyro.poutine.mask(mask=True if mask is None else mask):
        mean = ALIGNMENT(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y, **options)


ALIGNMENT = LatentAttention("z", AlignmentPrior())


@pytest.fixture
def problem():
    return torch.randn(6, 1, 4), torch.randn(1, 4, 1), 3 * torch.randn(6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
def test_exact_sums_in_half_precision(family, dtype, problem):
    """The numbers of the model are rounded; their likelihood and the sums are not."""
    half = [tensor.to(dtype).requires_grad_() for tensor in problem]
    full = [tensor.detach().float().requires_grad_() for tensor in half]
    losses = []
    for arguments in (half, full):
        elbo, guide = AlignmentELBO(max_plate_nesting=1), guide_of(alignment_model, family)
        loss = elbo.differentiable_loss(alignment_model, guide, *arguments)
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
    for rounded, exact in zip(half, full, strict=True):
        torch.testing.assert_close(rounded.grad.float(), exact.grad, rtol=3e-2, atol=3e-2)
    weights = [exact_alignments(alignment_model, *arguments)["z"].float() for arguments in (half, full)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-3)


def test_exact_alignments_in_inference_mode(problem):
    """Also of tensors that were made there, among the arguments; elsewhere these have no gradients to take."""
    expected = exact_alignments(alignment_model, *problem)["z"]
    with torch.inference_mode():
        made_inside = [tensor.clone() for tensor in problem]
        for arguments in (problem, made_inside):
            torch.testing.assert_close(exact_alignments(alignment_model, *arguments)["z"], expected)
    torch.testing.assert_close(exact_alignments(alignment_model, *made_inside)["z"], expected)
    weight = nn.Parameter(torch.ones(1))

    def model(y):
        alignment_model(weight * made_inside[0], problem[1], y)

    with pytest.raises(ValueError, match=r"exact_alignments takes gradients.*torch.no_grad\(\)"):
        exact_alignments(model, problem[2])


@pytest.mark.filterwarnings("ignore::pyro_attention.objectives.validation.PriorWarning")
def test_observations_in_part(problem):
    """``obs_mask`` makes a latent site of the rest; the remedy of the message gives those that are observed."""
    mask = torch.tensor([True, True, False, True, False, True])
    message = r"site 'y_unobserved': obs_mask= makes a latent site.*`with poutine.mask\(mask=...\):`"
    for run in (
        lambda: exact_alignments(alignment_model, *problem, obs_mask=mask),
        lambda: AlignmentELBO().loss(alignment_model, guide_of(alignment_model, Marginal()), *problem, obs_mask=mask),
    ):
        with pytest.raises(ValueError, match=message):
            run()
    found = exact_alignments(alignment_model, *problem, mask)["z"]
    torch.testing.assert_close(found[mask], exact_alignments(alignment_model, *problem)["z"][mask])
