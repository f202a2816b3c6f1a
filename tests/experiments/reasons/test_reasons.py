"""Reasons that are known: what the data say of them, and what is said of answers."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, one_hot

from experiments.files import UserError
from experiments.options import OptionError
from experiments.reasons import bags as bags_of_digits
from experiments.reasons import neighbors
from experiments.reasons.bags import SIZES, Pooling, cross_fit, make_bags, predicted, split, train
from experiments.reasons.config import ReasonConfig
from experiments.reasons.edges import NoisyGraph, edge_scores, houses
from experiments.reasons.neighbors import CLASSES, KINDS, NEIGHBORS, WIDTH, make_graph, read_explanations
from experiments.reasons.network import Reader, explain_by_pyg
from experiments.reasons.network import predicted as predicted_by_edges
from experiments.reasons.scores import reason_scores
from experiments.reasons.task import ReasonTask
from pyro_attention import AlignmentPrior, Marginal, exact_alignments


def test_a_node_has_the_class_of_its_one_neighbor_of_the_kind_that_it_asks_for(monkeypatch):
    monkeypatch.setattr(neighbors, "NOISE", {"kind": 0.0, "class": 0.0})
    data = make_graph(100, flipped=0.0, seed=0)
    kinds, classes = data.x[:, :WIDTH].argmax(-1), data.x[:, WIDTH : 2 * WIDTH].argmax(-1)
    asked, sources = data.x[:, 2 * WIDTH :].argmax(-1), data.edges[0].view(100, NEIGHBORS)
    assert torch.equal(kinds[sources] == asked.unsqueeze(-1), one_hot(data.cause, NEIGHBORS).bool())
    cause = sources.gather(-1, data.cause.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(data.y, classes[cause])
    assert all(len(set(row)) == NEIGHBORS for row in sources.tolist())
    flipped = make_graph(1000, flipped=0.5, seed=0).y != make_graph(1000, flipped=0.0, seed=0).y
    assert flipped.float().mean() == pytest.approx(0.5 * 0.8, abs=0.06)  # a class that is drawn anew may be the same


def test_pygs_network_is_ours():
    from torch_geometric.explain import AttentionExplainer

    torch.manual_seed(0)
    data = make_graph(40, flipped=0.0, seed=1)
    model = Reader(AlignmentPrior(), width=2 * WIDTH + KINDS, classes=CLASSES)
    mask = explain_by_pyg(model, data, AttentionExplainer(), "model")
    torch.testing.assert_close(mask, predicted_by_edges(model, data)[1].squeeze(-1))


def test_scores_of_answers():
    answers = torch.tensor([[0.9, 0.1, torch.nan], [0.6, 0.3, 0.1]])
    scores = reason_scores(answers, torch.tensor([0, 1]))
    assert scores["top_1"] == 0.5
    assert scores["auroc"] == pytest.approx(5 / 6)  # 0.9 is above all three others, 0.3 above two
    assert scores["ece"] == pytest.approx((0.1 + 0.6 + 0.7 + 0.2) / 5)


def test_bags():
    bags, test = (make_bags(20, test=part, seed=1) for part in (False, True))
    assert bags.images.shape == (1, 20, SIZES[1], 64)
    assert set(bags.is_there.sum(-1).flatten().tolist()) <= set(range(SIZES[0], SIZES[1] + 1))
    assert bags.is_there.gather(-1, bags.nine.unsqueeze(-1)).all()
    assert bags.y.mean() == 0.5
    known = {tuple(image) for image in bags.images[0].flatten(0, 1).tolist()}
    assert not known & {tuple(image) for image in test.images[0].flatten(0, 1).tolist()}


def test_an_empty_bag_has_no_reason_and_a_bag_of_one_a_certain_one():
    bags = make_bags(4, test=False, seed=0)
    size = torch.tensor([0, 1, 1, SIZES[0]])
    bags = bags._replace(is_there=(torch.arange(SIZES[1]) < size.unsqueeze(-1)).unsqueeze(0))
    model = Pooling(AlignmentPrior(), 1)
    posterior = exact_alignments(model, bags, max_plate_nesting=2)["instance"].squeeze(-2)[0]
    torch.testing.assert_close(posterior.sum(-1), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(posterior[1:3, 0], torch.ones(2))
    trained = train(model, Marginal(), bags, steps=2, weight_decay=0.1, kl_weight=0.01)
    assert all(parameter.isfinite().all() for parameter in trained.parameters())


def test_the_weight_decay_of_a_network_is_the_one_that_predicts_bags_held_out_best(monkeypatch):
    bags = make_bags(10, test=False, seed=0)
    _, held_out = split(bags)
    torch.testing.assert_close(held_out.images.sum((0, 1)), bags.images.sum((0, 1)))

    def losses(*decays):
        monkeypatch.setattr(bags_of_digits, "DECAYS", decays)
        p, _ = predicted(cross_fit(Marginal(), bags, steps=20, kl_weight=0.01), Marginal(), held_out)
        return binary_cross_entropy(p, held_out.y, reduction="none").mean(-1)

    torch.testing.assert_close(losses(0.1, 10.0), torch.minimum(losses(0.1), losses(10.0)))


def test_the_probability_of_an_instance_is_a_geometric_mean_over_networks():
    test = make_bags(2, test=True, seed=0)
    rows, nine = torch.arange(2), test.nine[0]
    sure, other = torch.full((2, 1, 2, SIZES[1]), 1e-8)
    sure[0, rows, nine] = other[0, rows, (nine == 0).long()] = 1.0
    positive = test.y[0] == 1
    for networks, share in (([sure], 1.0), ([sure, sure, other], 1.0), ([sure, other, other], 0.0)):
        assert bags_of_digits.instance_scores(torch.cat(networks), test, positive)["top_1"] == share


def test_scores_of_edges_are_those_of_test_nodes_with_real_and_added_ones():
    graph, again = houses(0), houses(0)
    assert torch.equal(graph.data.edge_index, again.data.edge_index)
    assert graph.real.sum() == 60 * 12
    added = torch.zeros(graph.data.edge_index.size(1) - len(graph.real), dtype=torch.bool)
    weights = torch.cat([graph.real, added]).float() + 0.1
    scores = edge_scores(NoisyGraph(*graph), weights, weights)
    assert scores == {"top_1": 1.0, "auroc": pytest.approx(1.0, abs=0.01), "agreement": 1.0}
    assert edge_scores(graph, weights, 1.2 - weights)["agreement"] == 0.0


TINY = {"steps": 25, "nodes": 60, "explainer_epochs": 2, "bags": 10, "progress": False}


def test_what_no_problem_has_is_refused(tmp_path):
    task = ReasonTask()
    with pytest.raises(OptionError, match="bags is 4, expected 5 at least"):
        task.run(ReasonConfig(**{**TINY, "bags": 4}, problem="bags", out=tmp_path / "bags"))
    with pytest.raises(UserError, match="guide is weibull, expected soft or marginal for the problem houses"):
        task.run(ReasonConfig(**TINY, problem="houses", guide="weibull", out=tmp_path / "houses"))
    config = ReasonConfig(**TINY, guide="soft", out=tmp_path / "run")
    metrics = task.run(config)
    assert task.run(ReasonConfig(**TINY, guide="soft", out=tmp_path / "run", resume=True)) == metrics
    explanations = read_explanations(config.out)
    assert (
        reason_scores(explanations["gnn_explainer"], explanations["cause"])["top_1"] == metrics["gnn_explainer_top_1"]
    )
    (config.out / "explanations.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"explanations\.npz cannot be read .*; remove the folder"):
        read_explanations(config.out)
