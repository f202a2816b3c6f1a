"""Reasons that are known: what the data say of them, and what is said of answers."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, one_hot

from experiments.reasons import bags as bags_of_digits
from experiments.reasons import edges
from experiments.reasons.bags import FOLDS, SIZES, Pooling, cross_fit, make_bags, predicted, split, train
from experiments.reasons.report import reason_scores
from pyro_attention import AlignmentPrior, Marginal, exact_alignments


def test_a_node_has_the_class_of_its_one_neighbor_of_the_kind_that_it_asks_for(monkeypatch):
    monkeypatch.setattr(edges, "NOISE", {"kind": 0.0, "class": 0.0})
    data = edges.make_graph(100, flipped=0.0, seed=0)
    kinds, classes = data.x[:, : edges.WIDTH].argmax(-1), data.x[:, edges.WIDTH : 2 * edges.WIDTH].argmax(-1)
    asked, sources = data.x[:, 2 * edges.WIDTH :].argmax(-1), data.edges[0].view(100, edges.NEIGHBORS)
    assert torch.equal(kinds[sources] == asked.unsqueeze(-1), one_hot(data.cause, edges.NEIGHBORS).bool())
    cause = sources.gather(-1, data.cause.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(data.y, classes[cause])
    assert all(len(set(row)) == edges.NEIGHBORS for row in sources.tolist())
    flipped = edges.make_graph(1000, flipped=0.5, seed=0).y != edges.make_graph(1000, flipped=0.0, seed=0).y
    assert flipped.float().mean() == pytest.approx(0.5 * 0.8, abs=0.06)  # a class that is drawn anew may be the same


def test_pygs_network_is_ours():
    from torch_geometric.explain import AttentionExplainer

    torch.manual_seed(0)
    data, model = edges.make_graph(40, flipped=0.0, seed=1), edges.Reader(AlignmentPrior())
    found = edges.explain_by_pyg(model, data, AttentionExplainer(), "model")
    torch.testing.assert_close(found, edges.predicted(model, data)[1].squeeze(-1))


def test_scores_of_answers():
    answers = torch.tensor([[0.9, 0.1, torch.nan], [0.6, 0.3, 0.1]])
    found = reason_scores(answers, torch.tensor([0, 1]))
    assert found["top_1"] == 0.5
    assert found["auroc"] == pytest.approx(5 / 6)  # 0.9 is above all three others, 0.3 above two
    assert found["ece"] == pytest.approx((0.1 + 0.6 + 0.7 + 0.2) / 5)


def test_bags():
    bags, test = (make_bags(20, test=of, seeds=2) for of in (False, True))
    assert bags.images.shape == (2, 20, SIZES[1], 64)
    assert set(bags.there.sum(-1).flatten().tolist()) <= set(range(SIZES[0], SIZES[1] + 1))
    assert bags.there.gather(-1, bags.nine.unsqueeze(-1)).all()
    assert bags.y.mean() == 0.5
    known = {tuple(image) for image in bags.images[0].flatten(0, 1).tolist()}
    assert not known & {tuple(image) for image in test.images[0].flatten(0, 1).tolist()}


def test_an_empty_bag_has_no_reason_and_a_bag_of_one_a_certain_one():
    bags = make_bags(4, test=False, seeds=1)
    size = torch.tensor([0, 1, 1, SIZES[0]])
    bags = bags._replace(there=(torch.arange(SIZES[1]) < size.unsqueeze(-1)).unsqueeze(0))
    model = Pooling(AlignmentPrior(), 1)
    posterior = exact_alignments(model, bags, max_plate_nesting=2)["instance"].squeeze(-2)[0]
    torch.testing.assert_close(posterior.sum(-1), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(posterior[1:3, 0], torch.ones(2))
    trained = train(model, Marginal(), bags, steps=2, weight_decay=0.1)
    assert all(parameter.isfinite().all() for parameter in trained.parameters())


def test_the_weight_decay_of_a_network_is_the_one_that_predicts_bags_held_out_best(monkeypatch):
    bags = make_bags(10, test=False, seeds=2)
    _, held_out = split(bags)
    torch.testing.assert_close(held_out.images.view(FOLDS, 2, 2, -1).sum((0, 2)), bags.images.view(2, 10, -1).sum(1))

    def losses(*decays):
        monkeypatch.setattr(bags_of_digits, "DECAYS", decays)
        p, _ = predicted(cross_fit(Marginal(), bags, steps=20), Marginal(), held_out)
        return binary_cross_entropy(p, held_out.y, reduction="none").mean(-1)

    torch.testing.assert_close(losses(0.1, 10.0), torch.minimum(losses(0.1), losses(10.0)))


def test_scores_of_edges_are_those_of_test_nodes_with_real_and_added_ones():
    (data, real), (again, _) = edges.houses(0), edges.houses(0)
    assert torch.equal(data.edge_index, again.edge_index)
    assert real.sum() == 60 * 12
    everything = torch.cat([real, torch.zeros(data.edge_index.size(1) - len(real), dtype=torch.bool)]).float() + 0.1
    found = edges.scores(data, real, (everything, 0.5), (everything, 0.5))
    assert found == {"top_1": 1.0, "auroc": pytest.approx(1.0, abs=0.01), "accuracy": 0.5, "agreement": 1.0}
    found = edges.scores(data, real, (everything, 0.5), (1.2 - everything, 0.5))
    assert found["agreement"] == 0.0
