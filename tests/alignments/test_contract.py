"""The contract of alignment distributions, against probabilities and sums over all alignments by hand."""

import itertools
import math
from dataclasses import replace

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch.distributions import kl_divergence

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionCall,
    AttentionGuide,
    Dense,
    EdgeList,
    LatentAttention,
    Marginal,
    NodeLikelihood,
    exact_alignments,
)
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.alignments.categorical import CategoricalAlignment
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.alignments.sparse import SparseAlignment
from pyro_attention.alignments.summed import EdgeSum
from pyro_attention.ops.segment import Segments
from tests.helpers import assert_mean

QUERIES, KEYS = 3, 4
WHOLE = torch.ones(QUERIES, KEYS, dtype=torch.bool)
HOLES = torch.tensor([[True, True, False, True], [False] * 4, [False, True, True, False]])  # the second has no key


def sparsemax_by_hand(scores, k):
    """Euclidean projection of a list of numbers onto the simplex, onto its k largest where there are more."""
    largest = sorted(scores, reverse=True)[:k]
    count = max(n for n in range(1, len(largest) + 1) if 1 + n * largest[n - 1] > sum(largest[:n]))
    threshold = (sum(largest[:count]) - 1) / count
    return [max(0.0, score - threshold) if score in largest else 0.0 for score in scores]


class InPlates:
    """Queries in a plate, with the keys of a dense layout."""

    def __init__(self, mask=WHOLE, prior=None, *, k=None):
        self.mask, self.k = mask, k
        self.prior = AlignmentPrior() if prior is None else prior
        self.event_shape, self.no_key = (), 0

    def layout(self):
        return Dense(None if self.mask.all() else self.mask[:, None], event_dim=2)

    def to_scores(self, matrix):
        """Scores of the layout, of a matrix with a row for each query."""
        return matrix.unsqueeze(-2)

    def to_matrix(self, weights):
        return weights.squeeze(-2)

    def to_value(self, keys):
        """Value of the site, of the key of each query; None for a query without keys."""
        return torch.tensor([self.no_key if key is None else key for key in keys])

    def impossible(self, query, table):
        """Values of a query that are impossible."""
        possible = [key for key, probability in table[query].items() if probability > 0]
        return [key for key in range(KEYS) if key not in (possible or [self.no_key])]

    def distribution(self, matrix):
        return self.prior(AttentionCall(scores=self.to_scores(matrix), layout=self.layout()))

    def row(self, scores):
        """Probabilities of a list of scores."""
        if isinstance(self.prior, SparseAlignmentPrior):
            return sparsemax_by_hand(scores, self.k or len(scores))
        total = sum(math.exp(score) for score in scores)
        return [math.exp(score) / total for score in scores]

    def table(self, matrix):
        """Probability of every key, as a list for each query; empty for a query without keys."""
        rows = []
        for scores, mask in zip(matrix.tolist(), self.mask.tolist(), strict=True):
            keys = [key for key in range(KEYS) if mask[key]]
            rows.append(dict(zip(keys, self.row([scores[key] for key in keys]), strict=True)) if keys else {})
        return rows

    def model(self, scores, values, y):
        attention = LatentAttention("z", self.prior)
        with pyro.plate("queries", QUERIES):
            out = attention(self.to_scores(scores), values.view(1, KEYS, 1), layout=self.layout())
            pyro.sample("y", Normal(out.context[..., 0, 0], 0.5), obs=y)


class OnEdges(InPlates):
    """Queries that are the targets of a bipartite graph, with an edge for every key that is not masked."""

    def __init__(self, mask=WHOLE):
        super().__init__(mask)
        self.event_shape, self.no_key = (QUERIES,), -1
        self.edges = mask

    def layout(self):
        return EdgeList.from_edge_index(self.edges.nonzero().T.flip(0), num_nodes=(KEYS, QUERIES))

    def to_scores(self, matrix):
        return matrix[..., self.edges].unsqueeze(-1)

    def to_matrix(self, weights):
        matrix = weights.new_zeros(*weights.shape[:-2], QUERIES, KEYS)
        matrix[..., self.edges] = weights.squeeze(-1)
        return matrix

    def to_value(self, keys):
        numbers = torch.full((QUERIES, KEYS), -1).masked_scatter(self.edges, torch.arange(int(self.edges.sum())))
        return torch.tensor([-1 if key is None else numbers[query, key].item() for query, key in enumerate(keys)])

    def impossible(self, query, table):
        edges = self.edges.nonzero().tolist()
        numbers = [number for number, (node, key) in enumerate(edges) if node != query or not self.mask[node, key]]
        return numbers + ([-1] if table[query] else [])

    def model(self, scores, values, y):
        attention = LatentAttention("z", self.prior)
        out = attention(self.to_scores(scores), values.view(KEYS, 1, 1), layout=self.layout())
        pyro.sample("y", NodeLikelihood(Normal(out.context[..., 0, 0], 0.5), out), obs=y)


class OnMaskedEdges(OnEdges):
    """All edges, of which a mask takes some out."""

    def __init__(self):
        super().__init__(HOLES)
        self.edges = WHOLE

    def layout(self):
        return replace(super().layout(), mask=self.mask.flatten().unsqueeze(-1))


CASES = {
    "dense": InPlates,
    "masked": lambda: InPlates(HOLES),
    "sparse": lambda: InPlates(WHOLE, SparseAlignmentPrior()),
    "sparse, masked": lambda: InPlates(HOLES, SparseAlignmentPrior()),
    "top 1": lambda: InPlates(WHOLE, SparseAlignmentPrior(k=1), k=1),
    "top 2, masked": lambda: InPlates(HOLES, SparseAlignmentPrior(k=2), k=2),
    "edges": OnEdges,
    "edges, a node without": lambda: OnEdges(HOLES),
    "masked edges": OnMaskedEdges,
}


def random_scores(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(QUERIES, KEYS, generator=generator, dtype=torch.float64)


def every_alignment(table):
    """Keys of all queries together, None without keys, and the probability, over all that are possible."""
    rows = [list(row.items()) if row else [(None, 1.0)] for row in table]
    for choice in itertools.product(*rows):
        if all(probability > 0 for _, probability in choice):
            yield [key for key, _ in choice], math.prod(probability for _, probability in choice)


def as_matrix(table):
    return torch.tensor([[row.get(key, 0.0) for key in range(KEYS)] for row in table], dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
class TestAlignmentDistributions:
    """Every distribution by the same oracles."""

    @pytest.fixture
    def case(self, name):
        return CASES[name]()

    @pytest.fixture
    def alignment(self, case):
        return case.distribution(random_scores())

    @pytest.fixture
    def table(self, case):
        return case.table(random_scores())

    def test_probabilities(self, case, alignment, table):
        assert isinstance(alignment, AlignmentDistribution)
        expected = as_matrix(table)
        torch.testing.assert_close(case.to_matrix(alignment.mean_value), expected)
        torch.testing.assert_close(case.to_matrix(alignment.log_weights.exp())[case.mask], expected[case.mask])
        assert alignment.log_weights.isfinite().all()
        sizes = torch.tensor([max(1, sum(p > 0 for p in row.values())) for row in table])
        assert (alignment.support_size == sizes).all()
        whole = InPlates(case.mask, None if isinstance(case, OnEdges) else case.prior).table(random_scores())
        cut = torch.tensor([sum(p > 0 for p in row.values()) for row in whole]) > (case.k or KEYS)
        assert (alignment.is_cut == cut).all()
        assert alignment.counts == math.prod(case.event_shape)

    def test_log_probabilities_of_every_alignment(self, case, alignment, table):
        total = 0.0
        for keys, probability in every_alignment(table):
            value = case.to_value(keys)
            of_query = [1.0 if key is None else row[key] for row, key in zip(table, keys, strict=True)]
            expected = torch.tensor(of_query, dtype=torch.float64).log()
            torch.testing.assert_close(alignment.log_prob_per_query(value), expected)
            torch.testing.assert_close(alignment.log_prob(value), expected.sum() if case.event_shape else expected)
            assert alignment.is_possible(value).all()
            one_hot = [[float(key == chosen) for key in range(KEYS)] for chosen in keys]
            assert case.to_matrix(alignment.weights(value)).tolist() == one_hot
            torch.testing.assert_close(alignment.log_prob(alignment.weights(value)).sum(), expected.sum())
            total += probability
        assert total == pytest.approx(1)

    def test_impossible_alignments(self, case, alignment, table):
        """Of one query: a masked key, one of probability zero, an edge of another node, or none where there are."""
        possible = case.to_value(next(every_alignment(table))[0])
        for query in range(QUERIES):
            for number in case.impossible(query, table):
                value = possible.clone()
                value[query] = number
                assert alignment.is_possible(value).tolist() == [other != query for other in range(QUERIES)]
                assert alignment.log_prob_per_query(value)[query].exp() == 0
                assert alignment.log_prob(value).exp().min() == 0
                if case.event_shape or not case.mask[query, number]:
                    assert (case.to_matrix(alignment.weights(value))[query] == 0).all()

    def test_entropy_and_divergence(self, case, alignment, table):
        other = case.distribution(random_scores(1))
        dense = other if isinstance(case, OnEdges) else InPlates(case.mask).distribution(random_scores(1))
        log_p = InPlates(case.mask).table(random_scores(1))
        entropy, kl = [], []
        for row, log_row in zip(table, log_p, strict=True):
            entropy.append(-sum(p * math.log(p) for p in row.values() if p > 0))
            kl.append(sum(p * math.log(p / log_row[key]) for key, p in row.items() if p > 0))
        for actual, rows in ((alignment.entropy(), entropy), (kl_divergence(alignment, dense), kl)):
            expected = torch.tensor(rows, dtype=torch.float64)
            torch.testing.assert_close(actual, expected.sum() if case.event_shape else expected)
        assert (kl_divergence(alignment, alignment) == 0).all()
        torch.testing.assert_close(alignment.log_prob(alignment.mean_value), -alignment.entropy())
        torch.testing.assert_close(
            kl_divergence(alignment.over_weights, dense.over_weights), kl_divergence(alignment, dense)
        )

    def test_draws(self, case, alignment, table):
        torch.manual_seed(0)
        value = alignment.sample((4000,))
        assert value.shape == (4000, QUERIES)
        assert alignment.is_possible(value).all()
        weights, expected = case.to_matrix(alignment.weights(value)), as_matrix(table)
        assert ((weights == 0) | (weights == 1)).all()
        assert (weights.sum(-1) == torch.tensor([float(bool(row)) for row in table])).all()
        random = (expected > 0) & (expected < 1)
        assert (weights[:, ~random] == expected[~random]).all()
        if random.any():
            assert_mean(weights[:, random], expected[random])

    def test_uniform_over_what_is_possible(self, case, alignment, table):
        counts = [sum(p > 0 for p in row.values()) for row in table]
        expected = [[float(row.get(key, 0.0) > 0) / max(1, count) for key in range(KEYS)]
                    for row, count in zip(table, counts, strict=True)]  # fmt: skip
        matrix = case.to_matrix(alignment.uniform().mean_value)
        torch.testing.assert_close(matrix, torch.tensor(expected, dtype=torch.float64))
        drawn = alignment.expand((5, *alignment.batch_shape)).uniform().sample()
        assert drawn.shape == (5, QUERIES)
        assert alignment.is_possible(drawn).all()

    def test_other_scores_keep_impossible_keys_impossible(self, case, alignment, table):
        possible = as_matrix(table) > 0
        other = case.to_matrix(alignment.at_scores(case.to_scores(random_scores(2))).mean_value)
        assert (other[~possible] == 0).all()
        torch.testing.assert_close(other.sum(-1), possible.any(-1).double())

    def test_expand(self, case, alignment):
        wide, value = alignment.expand((5, *alignment.batch_shape)), alignment.sample()
        assert wide.shape() == (5, QUERIES)
        assert (wide.batch_shape, wide.event_shape) == ((5, *alignment.batch_shape), case.event_shape)
        torch.testing.assert_close(wide.mean_value, alignment.mean_value.expand(wide.full_shape))
        for term in (lambda p: p.entropy(), lambda p: p.log_prob(value), lambda p: kl_divergence(p, alignment)):
            torch.testing.assert_close(term(wide), term(alignment).expand(wide.batch_shape))
        assert (wide.support_size.expand(5, QUERIES) == alignment.support_size).all()
        torch.manual_seed(0)
        random = alignment.mean_value.max() < 1
        draws = alignment.expand((50, *alignment.batch_shape)).sample()
        assert (len(draws.unique(dim=0)) > 1) == random

    def test_normalize(self, case, alignment):
        """As Bayes' rule does, in whatever units."""
        slopes = alignment.mean_value * torch.rand(alignment.full_shape).double() * 7
        expected = case.to_matrix(slopes)
        expected = (expected / expected.sum(-1, keepdim=True)).nan_to_num(0)
        torch.testing.assert_close(case.to_matrix(alignment.normalize(slopes)), expected)
        torch.testing.assert_close(alignment.sum_over_keys(slopes), case.to_matrix(slopes).sum(-1))

    def test_support_of_weights(self, alignment):
        over_weights = alignment.over_weights
        assert over_weights.support.check(alignment.weights(alignment.sample())).all()
        assert over_weights.support.check(alignment.mean_value).all()
        assert not over_weights.support.check(alignment.mean_value * 1.1).all()
        assert over_weights.event_shape == alignment.full_shape[-2:]

    def test_enumeration(self, case, alignment, table):
        """The values of a dimension, or the edges of an event, are all alignments, once each."""
        if not alignment.has_enumerate_support:
            value, prior, _ = alignment.sum_in_event(alignment, evidence=True)
            assert (case.to_matrix(value).bool() == case.mask).all()
            assert prior.log_prob(value) == 0
            return
        assert alignment.sum_in_event(alignment, evidence=True) is None
        values = alignment.enumerate_support()
        assert values.shape[1:] == (QUERIES,)
        possible = alignment.is_possible(values)
        for query, row in enumerate(table):
            enumerated = values[possible[:, query], query].tolist()
            assert sorted(enumerated) == ([key for key, p in row.items() if p > 0] or [case.no_key])
        total = alignment.log_prob(values).exp().where(possible, 0).sum(0)
        torch.testing.assert_close(total, torch.ones(QUERIES, dtype=torch.float64))

    def test_evidence_and_exact_posterior(self, case, table):
        """Over all joint alignments, by Bayes' rule."""
        values, y = torch.linspace(-1, 1, KEYS).double(), torch.tensor([0.3, -0.8, 0.1]).double()
        evidence, posterior = 0.0, torch.zeros(QUERIES, KEYS, dtype=torch.float64)
        for keys, probability in every_alignment(table):
            means = torch.tensor([0.0 if key is None else values[key].item() for key in keys], dtype=torch.float64)
            joint = probability * Normal(means, 0.5).log_prob(y).sum().exp().item()
            evidence += joint
            for query, key in enumerate(keys):
                if key is not None:
                    posterior[query, key] += joint
        scores = random_scores()
        loss = AlignmentELBO(max_plate_nesting=1).loss(
            case.model, AttentionGuide(case.model, Marginal()), scores, values, y
        )
        assert -loss == pytest.approx(math.log(evidence), rel=1e-10)
        exact = case.to_matrix(exact_alignments(case.model, scores, values, y)["z"])
        torch.testing.assert_close(exact, posterior / evidence)

    def test_gradients(self, case, table):
        """Finite, and zero at keys that are masked, or the only ones of their query."""
        scores = random_scores().requires_grad_()
        alignment, other = case.distribution(scores), case.distribution(random_scores(1))
        dense = other if isinstance(case, OnEdges) else InPlates(case.mask).distribution(random_scores(1))
        for term in (alignment.entropy(), kl_divergence(alignment, dense), alignment.log_prob(alignment.sample())):
            (gradient,) = torch.autograd.grad(term.sum(), scores, retain_graph=True)
            assert gradient.isfinite().all()
            assert (gradient[~case.mask] == 0).all()
            assert (gradient[[not row for row in table]] == 0).all()

    def test_tilt(self, case, alignment, table):
        """Adds to the logarithms of possible keys, without normalization."""
        tilt = torch.randn(alignment.full_shape).double()
        difference = case.to_matrix(alignment.tilted(tilt).log_weights - alignment.log_weights)
        possible = as_matrix(table) > 0
        torch.testing.assert_close(difference[possible], case.to_matrix(tilt)[possible])


def test_one_entry_of_a_mask_says_whether_a_query_attends_at_all():
    mask = torch.tensor([[[True]], [[False]]])
    alignment = CategoricalAlignment(torch.zeros(2, 1, 3), layout=Dense(mask, event_dim=2))
    assert alignment.is_possible(torch.tensor([2, 1])).tolist() == [True, False]
    assert alignment.is_possible(torch.tensor([2, 0])).tolist() == [True, True]


@pytest.mark.parametrize("evidence", [True, False], ids=["evidence", "expectation"])
@pytest.mark.parametrize("make", [OnEdges, lambda: OnEdges(HOLES), OnMaskedEdges], ids=["edges", "holes", "mask"])
def test_the_running_sum_of_edges(make, evidence):
    """Of two observations, each of which is summed given those before."""
    case = make()
    p, q = case.distribution(random_scores()), case.distribution(random_scores(1))
    _, prior, edges = q.sum_in_event(p, evidence=evidence)
    log_f = [random_scores(seed) for seed in (2, 3)]
    nothing = [torch.tensor(number, dtype=torch.float64) for number in (-0.7, 0.2)]
    total = torch.zeros(QUERIES, dtype=torch.float64)
    for term, of_none in zip(log_f, nothing, strict=True):
        rows = case.to_scores(term).squeeze(-1)
        total = total + edges.add(torch.cat([rows, of_none.expand(len(edges.rows.index) - len(rows))]))
    for query, row in enumerate(case.table(random_scores(0 if evidence else 1))):
        terms = [(p, sum(term[query, key] for term in log_f)) for key, p in row.items()] or [(1.0, sum(nothing))]
        sums = sum(p * term.exp() for p, term in terms).log(), sum(p * term for p, term in terms)
        expected = sums[0 if evidence else 1]
        torch.testing.assert_close(total[query], expected)
    bound = 0 if evidence else -kl_divergence(q, p)
    assert prior.log_prob(torch.ones(p.full_shape, dtype=torch.bool)) == bound


@pytest.mark.parametrize("evidence", [True, False], ids=["evidence", "expectation"])
def test_an_impossible_observation_at_a_masked_edge_adds_nothing(evidence):
    """Zero times minus infinity is NaN."""
    log_f = torch.tensor([-1.0, -torch.inf], requires_grad=True)
    edges = EdgeSum(Segments(torch.tensor([0, 0]), 1), torch.tensor([0.0, -torch.inf]), evidence=evidence)
    total = edges.add(log_f)
    assert total.tolist() == [-1.0]
    assert torch.autograd.grad(total, log_f)[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("k", "expected"), [(None, False), (4, True), (5, False)])
def test_an_alignment_of_more_keys_than_queries_is_cut_where_it_has_more_than_k(k, expected):
    alignment = SparseAlignment(torch.zeros(2, 3, 1, 5), layout=Dense(event_dim=2), k=k)
    assert alignment.is_cut.tolist() == [[expected] * 3] * 2
