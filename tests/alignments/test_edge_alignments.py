"""Alignments over the edges of a graph against sums over every one of them, and against the dense layout."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Categorical as Classes
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionCall,
    AttentionGuide,
    Categorical,
    EdgeList,
    GraphAttention,
    LatentAttention,
    Marginal,
    NodeLikelihood,
    ScoreFunctionELBO,
    Soft,
    check_model,
    elbo_for,
    exact_alignments,
    sample_posterior,
)
from pyro_attention.alignments.edges import EdgeAlignment
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.families.dirichlet import DirichletPrior
from tests.families.test_contract import KindContract, Model, Queries, SameScores, build, evaluate
from tests.helpers import assert_mean, gradients, make_prior


def at_edges(dense):
    """``[..., M, 1, N]`` at an edge from every key to every query, ``[..., M * N, 1]``."""
    return dense.flatten(-3).unsqueeze(-1)


class EdgeModel(nn.Module):
    """The contract's model, with an edge from every key to every query and a mask over the edges."""

    def __init__(self, prior, **options):
        super().__init__()
        self.attention = LatentAttention("attention", make_prior(prior, heads=1, width=2).double(), **options)

    def forward(self, problem):
        queries, _, keys = problem.mask.shape
        edges = torch.cartesian_prod(torch.arange(queries), torch.arange(keys)).T.flip(0)
        graph = EdgeList.from_edge_index(edges, num_nodes=(keys, queries))
        graph = EdgeList(graph.sources, graph.targets, graph.num_input_edges, at_edges(problem.mask))
        values = problem.values[:, 0, 0].unsqueeze(-2)
        with pyro.plate("batch", len(values), dim=-1):
            out = self.attention(at_edges(problem.scores), values, keys=values, layout=graph)
            targets = Normal(out.context.squeeze(-2), 1.0).to_event(1)
            pyro.sample("targets", NodeLikelihood(targets, out), obs=problem.targets)
        return out.weights.view(problem.scores.shape)


class SameEdgeScores(SameScores):
    def forward(self, problem):
        return at_edges(super().forward(problem))


class TestKindsOnEdges(KindContract):
    model = EdgeModel
    network = SameEdgeScores
    pairs = tuple(
        pair for pair in KindContract.pairs if pair[1] != "sparse_alignment" and pair[0] != "sparse_categorical"
    )

    def test_the_layouts_agree(self, family, prior):
        problem = Queries.random()
        found = [evaluate(model(prior), build(family), problem) for model in (Model, EdgeModel)]
        if "contextual" not in prior:  # whose networks are initialised at random
            torch.testing.assert_close(*found)


# brute force: a graph with a self loop, parallel edges, and nodes without edges


NODES, WIDTH, CLASSES = 5, 4, 3
EDGES = torch.tensor([[0, 1, 2, 3, 3, 1, 1], [1, 2, 2, 2, 0, 0, 0]])


class Reader(pyro.nn.PyroModule):
    """Every node reads one neighbor, and has a class; with ``twice`` a number, too."""

    def __init__(self, prior=None, *, twice=False):
        super().__init__()
        prior = AlignmentPrior() if prior is None else prior
        self.layer = GraphAttention(WIDTH, 2, add_self_loops=False, residual=True, prior=prior, name="z").double()
        self.head, self.twice = nn.Linear(2 + WIDTH, CLASSES).double(), twice

    def forward(self, x, y, number=None, observed=None, edges=EDGES):
        out = self.layer.attend(x, edges)
        logits = self.head(torch.cat([out.context, out.at_rows(x)], -1))
        pyro.sample("y", NodeLikelihood(Classes(logits=logits), out, mask=observed), obs=y)
        if self.twice:
            pyro.sample("number", NodeLikelihood(Normal(out.context[..., 0], 0.5), out), obs=number)
        return logits

    def prior(self, x):
        scores = AttentionGuide(self, Soft()).run(x, torch.zeros(NODES).long(), torch.zeros(NODES)).trace.nodes["z"]
        return scores["infer"]["prior"].mean_value.squeeze(-1)

    def log_likelihood(self, edge, node, x, y, number, observed):
        """Of one node, whose only edge is this one, or which has none."""
        message = self.layer.bias + self.layer.res(x[node])
        if edge is not None:
            message = message + self.layer.lin_src(x[EDGES[0, edge]])
        found = self.head(torch.cat([message, x[node]])).log_softmax(-1)[y[node]] * observed[node]
        return found + (Normal(message[0], 0.5).log_prob(number[node]) if self.twice else 0)


@pytest.fixture
def data():
    torch.manual_seed(0)
    x, y = torch.randn(NODES, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (NODES,))
    return x, y, torch.randn(NODES, dtype=torch.float64), torch.tensor([True, True, False, True, True])


def brute_force(model, data, log_q=None):
    """Log evidence, or the ELBO of a posterior, and the exact posterior of every edge."""
    p, total, posterior = model.prior(data[0]), 0.0, torch.zeros(EDGES.size(1), dtype=torch.float64)
    for node in range(NODES):
        edges = (EDGES[1] == node).nonzero().flatten().tolist()
        terms = torch.stack([model.log_likelihood(edge, node, *data) for edge in edges or [None]])
        joint = terms + (p[edges].log() if edges else 0)
        posterior[edges] = joint.softmax(0).detach()[: len(edges)]
        if log_q is None or not edges:
            total = total + joint.logsumexp(0)
        else:
            total = total + (log_q[edges].exp() * (joint - log_q[edges])).sum()
    return total, posterior


@pytest.mark.parametrize("twice", [False, True], ids=["one observation", "two observations"])
def test_sums_are_those_over_every_edge(data, twice):
    model = Reader(twice=twice)
    parameters = list(model.parameters())
    wanted, posterior = brute_force(model, data)
    found = -AlignmentELBO()(model, AttentionGuide(model, Marginal()))(*data)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(found, *parameters), gradients(wanted, *parameters))
    torch.testing.assert_close(exact_alignments(model, *data)["z"].squeeze(-1), posterior)
    # hard attention, q = p
    p = model.prior(data[0])
    wanted, found = (
        brute_force(model, data, p.log())[0],
        -elbo_for(Categorical())(model, AttentionGuide(model, Categorical()))(*data),
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(found, *parameters), gradients(wanted, *parameters))
    # a posterior of its own: a bound, which is tight at the exact one
    for log_q, tight in ((torch.randn(EDGES.size(1)).double(), False), (posterior.log(), True)):
        network = nn.Module()
        network.forward = lambda *_, scores=log_q: scores.unsqueeze(-1)
        guide = AttentionGuide(model, Amortized(network, Categorical()))
        found = -AlignmentELBO().differentiable_loss(model, guide, *data)
        log_q = EdgeAlignment(log_q.unsqueeze(-1), layout=EdgeList.from_edge_index(EDGES, num_nodes=NODES)).log_weights
        wanted = brute_force(model, data, log_q.squeeze(-1))[0]
        torch.testing.assert_close(found, wanted)
        assert torch.isclose(found, brute_force(model, data)[0]) == tight


@pytest.mark.parametrize("form", [False, torch.tensor(False), torch.tensor([True, False])], ids=str)
@pytest.mark.parametrize("family", [Marginal(), Categorical()])
def test_an_observation_that_a_handler_masks_says_nothing_of_the_edges(data, form, family):
    """Nor of what is observed after it; two graphs lie in a plate."""
    layer = GraphAttention(WIDTH, 2, add_self_loops=False, prior=AlignmentPrior(), name="z").double()
    x, number = torch.stack([data[0], data[0].flip(0)]), torch.stack([data[2], data[2] + 1])

    def model(x, *, first=True, mask=None):
        with pyro.plate("graphs", len(x), dim=-1):
            out = layer.attend(x, EDGES)
            if first:
                with poutine.mask(mask=True if mask is None else mask):
                    pyro.sample("a", NodeLikelihood(Normal(out.context[..., 1], 0.3), out), obs=number[: len(x)])
            pyro.sample("b", NodeLikelihood(Normal(out.context[..., 0], 0.5), out), obs=number[: len(x)])

    def evaluate(x, **options):
        guide, elbo = AttentionGuide(model, family), AlignmentELBO(max_plate_nesting=1)
        return elbo.differentiable_loss(model, guide, x, **options), exact_alignments(model, x, **options)["z"]

    loss, posterior = evaluate(x, mask=form)
    expected, exact = evaluate(x, first=False)
    if isinstance(form, torch.Tensor) and form.dim():  # the first graph has both observations
        (both, pair), (one, _) = evaluate(x[:1]), evaluate(x[:1], first=False)
        expected, exact = expected - one + both, torch.cat([pair, exact[1:]])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(posterior, exact)


@pytest.mark.parametrize("family", [Marginal(), Categorical()])
def test_a_mask_of_the_nodes_counts_beside_that_of_a_handler(data, family):
    layer = GraphAttention(WIDTH, 2, add_self_loops=False, prior=AlignmentPrior(), name="z").double()
    x, number = torch.stack([data[0], data[0].flip(0)]), torch.stack([data[2], data[2] + 1])
    observed = torch.arange(NODES) % 2 == 0

    def model(handler, nodes):
        with pyro.plate("graphs", 2, dim=-1):
            out = layer.attend(x, EDGES)
            with poutine.mask(mask=handler):
                pyro.sample("b", NodeLikelihood(Normal(out.context[..., 0], 0.5), out, mask=nodes), obs=number)

    def loss(handler, nodes=None):
        return AlignmentELBO(max_plate_nesting=1).loss(model, AttentionGuide(model, family), handler, nodes)

    both = torch.ones(2, dtype=torch.bool)
    assert loss(both, observed) == pytest.approx(loss(True, observed))
    assert loss(both, observed) != pytest.approx(loss(True))


@pytest.mark.parametrize("around", ["observation", "attention"])
def test_another_scale_than_that_of_the_edges(data, around):
    """As for queries in plates: a minibatch of the observations of one alignment has no exact sum."""
    layer = GraphAttention(WIDTH, 2, add_self_loops=False, prior=AlignmentPrior(), name="z").double()

    def model(x, number):
        with poutine.scale(scale=2.0 if around == "attention" else 1.0):
            out = layer.attend(x, EDGES)
        with poutine.scale(scale=2.0 if around == "observation" else 1.0):
            pyro.sample("y", NodeLikelihood(Normal(out.context[..., 0], 0.5), out), obs=number)

    with pytest.raises(ValueError, match=r"site 'y' reads 'z', which is summed out, but its scale is .*, expected"):
        AlignmentELBO(max_plate_nesting=0).loss(model, AttentionGuide(model, Marginal()), data[0], data[2])
    AlignmentELBO(max_plate_nesting=0).loss(model, AttentionGuide(model, Categorical()), data[0], data[2])


def test_an_added_self_loop_takes_the_place_of_one_in_the_graph(data):
    """And everything else stays: the sums are those over a graph that has the loops as edges."""
    x, y, _, observed = data
    loops = torch.arange(NODES).expand(2, -1)
    model = Reader()
    wanted = AlignmentELBO().loss(model, AttentionGuide(model, Marginal()), x, y, None, observed,
        torch.cat([EDGES[:, EDGES[0] != EDGES[1]], loops], 1))  # fmt: skip
    edges, model.layer.add_self_loops = torch.cat([EDGES, torch.tensor([[4], [4]])], 1), True
    assert AlignmentELBO().loss(model, AttentionGuide(model, Marginal()), x, y, None, observed, edges) == pytest.approx(
        wanted
    )
    assert exact_alignments(model, x, y, None, observed, edges)["z"][[2, 7]].tolist() == [[0.0], [0.0]]


def test_drawn_edges(data):
    """Their frequencies, and the gradient of the score function, which has a reward for each node."""
    x, model = data[0], Reader(twice=True)
    guide, p = AttentionGuide(model, Categorical(enumerate=False)), model.prior(x).detach()
    drawn = sample_posterior(guide, *data, num_samples=400, seed=0)["z"].squeeze(-1)
    sums = torch.zeros(400, NODES).double().index_add(1, EDGES[1], drawn)
    assert (sums == torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])).all()
    varying = p < 1
    assert_mean(drawn[:, varying], p[varying])
    exact = AlignmentELBO().differentiable_loss(model, AttentionGuide(model, Categorical()), *data)
    wanted = torch.cat([gradient.flatten() for gradient in gradients(exact, *model.layer.score.parameters())])
    elbo, found = ScoreFunctionELBO(max_plate_nesting=0), []
    torch.manual_seed(0)
    for _ in range(300):
        loss = elbo.differentiable_loss(model, guide, *data)
        found.append(torch.cat([gradient.flatten() for gradient in gradients(loss, *model.layer.score.parameters())]))
    moving = wanted.abs() > 1e-9  # what is the same for all edges of a node cancels
    assert moving.any()
    assert_mean(torch.stack(found)[:, moving], wanted[moving])


def test_a_hub_of_many_edges_takes_a_row_an_edge():
    """Also beside nodes of one edge, or none: nothing is padded."""
    hub, rows = 10_000, []
    edges = torch.stack([torch.arange(hub), torch.zeros(hub).long()])
    graph = EdgeList.from_edge_index(torch.cat([edges, torch.tensor([[5], [1]])], 1), num_nodes=hub)
    attention, values = LatentAttention("z", AlignmentPrior()), torch.linspace(-1, 1, hub).view(hub, 1, 1)
    scores = torch.randn(hub + 1, 1).requires_grad_()

    def model():
        out = attention(scores, values, layout=graph)
        rows.append(len(out.context))
        pyro.sample("y", NodeLikelihood(Normal(out.context[..., 0, 0], 0.1), out), obs=torch.zeros(hub))

    posterior = exact_alignments(model)["z"].squeeze(-1)
    assert rows[-1] == hub + 1 + hub - 2
    joint = scores[:hub, 0].detach() + Normal(values[:, 0, 0], 0.1).log_prob(torch.zeros(()))
    torch.testing.assert_close(posterior[:hub], joint.softmax(0), atol=1e-6, rtol=1e-3)
    assert posterior[-1] == 1


def test_the_dirichlet_of_a_node_is_torchs():
    graph = EdgeList.from_edge_index(EDGES, num_nodes=NODES)
    scores, other = torch.randn(2, EDGES.size(1), 2).double()
    p, q = (DirichletPrior()(AttentionCall(scores=each, layout=graph)) for each in (scores, other))
    value, found = q.rsample(), {"kl": 0.0, "entropy": 0.0}
    for node in range(3):
        edges, names = EDGES[1] == node, (q.concentration, p.concentration)
        ours, theirs = (torch.distributions.Dirichlet(each[edges].mT) for each in names)
        found["kl"] += torch.distributions.kl_divergence(ours, theirs).sum()
        torch.testing.assert_close(value.exp()[edges].sum(0), torch.ones(2).double())
    torch.testing.assert_close(torch.distributions.kl_divergence(q, p), found["kl"])
    torch.testing.assert_close(q.mean_value[EDGES[1] == 1].exp(), torch.ones(1, 2).double())


def test_bad_input(data):
    x, y, number, _ = data
    model = Reader()
    guide, elbo = AttentionGuide(model, Marginal()), AlignmentELBO()
    assert check_model(model, guide, x, y).ok
    with pytest.raises(ValueError, match=r"shape \(7, 2\), expected one head, .*pass heads=1"):
        EdgeAlignment(torch.zeros(7, 2), layout=EdgeList.from_edge_index(EDGES, num_nodes=NODES))
    with pytest.raises(ValueError, match="expected Dense"):
        Reader(SparseAlignmentPrior())(x, y)
    plain = lambda: model.layer(x, EDGES)  # noqa: E731
    with pytest.raises(ValueError, match="site 'z': its edges are summed over, so its rows are edges; call attend"):
        elbo.loss(plain, AttentionGuide(plain, Marginal()))
    blind = lambda: model.layer.attend(x, EDGES)  # noqa: E731
    with pytest.raises(ValueError, match="site 'z': its edges are summed over, but nothing is observed of them"):
        elbo.loss(blind, AttentionGuide(blind, Marginal()))

    def independent():
        out = model.layer.attend(x, EDGES)
        pyro.sample("y", NodeLikelihood(Normal(out.context[..., 0], 1.0), out).to_event(0).mask(True), obs=number)

    with pytest.raises(ValueError, match="nothing sums over the edges of site 'z'; use AlignmentELBO, and give"):
        elbo.loss(independent, AttentionGuide(independent, Marginal()))

    def short():
        out = model.layer.attend(x, EDGES)
        pyro.sample("y", NodeLikelihood(Normal(x[:, 0], 1.0), out), obs=number)

    with pytest.raises(ValueError, match=r"batch shape \(5,\), the context 9 rows, .* attention.at_rows"):
        elbo.loss(short, AttentionGuide(short, Marginal()))
    prior = EdgeAlignment(torch.zeros(7, 1), layout=EdgeList.from_edge_index(EDGES, num_nodes=NODES))
    with pytest.raises(ValueError, match="support"):
        prior.log_prob(torch.tensor([7, 0, 1, -1, -1]))
