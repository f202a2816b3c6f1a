"""Models of visual question answering: the published network, exact sums, padding, order of regions, bad input."""

import math

import pytest
import torch
from torch import nn

from guides.inference_network import AnswerNetwork
from models.vqa import MCAN, BottomUp, MCANSizes, MultiView
from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    DoublyNormalized,
    FixedGammaPrior,
    Hybrid,
    Marginal,
    ScoreFunctionELBO,
    Soft,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.normalizers import Softmax
from tests.helpers import assert_mean

WORDS, FEATURES, ANSWERS = 9, 5, 4
SIZES = MCANSizes(embedding=6, width=8, heads=2, layers=2, feed_forward=12, reduced=10)


def questions(*, views=0, more=0):
    """Three questions of different lengths about different numbers of regions, and padding that must not matter."""
    generator = torch.Generator().manual_seed(0)
    words, counts = (4, 1, 2), (6, 3, 1)
    question_mask = torch.arange(4 + more) < torch.tensor(words)[:, None]
    region_mask = torch.arange(6 + more) < torch.tensor(counts)[:, None]
    question = torch.randint(1, WORDS, (3, 4), generator=generator)
    regions = torch.randn(3, 6, FEATURES, generator=generator, dtype=torch.float64)
    question = nn.functional.pad(question, (0, more)).where(question_mask, 0)
    regions = nn.functional.pad(regions, (0, 0, 0, more)).where(region_mask[..., None], 9.0)
    if views:
        regions = torch.stack([regions * (view + 1) for view in range(views)], 1)
        region_mask = region_mask[:, None].expand(-1, views, -1)
    return question, question_mask, regions, region_mask


def make(kind, **options):
    torch.manual_seed(1)
    if kind is MCAN:
        options = {"sizes": SIZES, "prior": lambda *_: FixedGammaPrior(), **options}
    elif kind is BottomUp:
        options = {"embedding": 6, "hidden": 8, "prior": FixedGammaPrior(), **options}
    else:
        options = {"embedding": 6, "hidden": 8, "prior": lambda *_: FixedGammaPrior(), **options}
    return kind(WORDS, FEATURES, ANSWERS, **options).double().eval()


def logits(model, arguments):
    return AttentionGuide(model, Soft()).run(*arguments).output


def plain_mcan(model, question, question_mask, regions, region_mask):
    """MCAN as published, in plain PyTorch, with the weights of a model."""
    x, _ = model.lstm(model.embedding(question))
    y = model.region(regions)
    no_word, no_region = ~question_mask, ~region_mask

    def block(part, queries, keys, mask):
        return part.norm(queries + part.attention.to_torch()(queries, keys, keys, key_padding_mask=mask)[0])

    def feed_forward(part, hidden):
        return part.norm(hidden + part.layers(hidden))

    for layer in model.question_layers:
        x = feed_forward(layer["feed_forward"], block(layer["self"], x, x, no_word))
    for layer in model.region_layers:
        y = block(layer["self"], y, y, no_region)
        y = feed_forward(layer["feed_forward"], block(layer["guided"], y, x, no_word))

    def reduced(part, hidden, mask):
        weights = part.score(hidden).squeeze(-1).masked_fill(mask, -1e9).softmax(-1)
        return part.merge((weights.unsqueeze(-1) * hidden).sum(1))

    both = reduced(model.reduce_question, x, no_word) + reduced(model.reduce_regions, y, no_region)
    return model.output(model.fused(both))


def test_mcan_is_the_published_network_under_soft_attention():
    model, arguments = make(MCAN), questions()
    torch.testing.assert_close(logits(model, arguments), plain_mcan(model, *arguments), rtol=1e-6, atol=1e-8)
    sizes = MCANSizes()
    assert (sizes.layers, sizes.heads, sizes.width) == (6, 8, 512)
    # soft scores are scored by the binary cross-entropy
    scores = torch.rand(3, ANSWERS, dtype=torch.float64)
    loss = AttentionELBO().loss(model, AttentionGuide(model, Soft()), *arguments, scores)
    expected = nn.functional.binary_cross_entropy_with_logits(logits(model, arguments), scores, reduction="sum")
    assert loss == pytest.approx(expected.item(), rel=1e-10)


KINDS = [
    pytest.param(MCAN, {"likelihood": "single"}, id="mcan"),
    pytest.param(MCAN, {"normalizer": lambda heads: Hybrid(heads=heads)}, id="mcan-hybrid"),
    pytest.param(BottomUp, {}, id="bottom-up"),
    pytest.param(MultiView, {}, id="multi-view"),
    pytest.param(MultiView, {"normalizer": lambda heads: DoublyNormalized()}, id="multi-view-doubly"),
    pytest.param(MultiView, {"heads": 4}, id="multi-view-heads"),
    pytest.param(MultiView, {"merge": "concatenation"}, id="multi-view-no-attention"),
    pytest.param(MultiView, {"merge": "first"}, id="multi-view-first"),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_padding_the_batch_and_the_order_of_regions_never_change_an_answer(kind, options):
    model, views = make(kind, **options), 3 if kind is MultiView else 0
    question, question_mask, regions, region_mask = arguments = questions(views=views)
    expected = logits(model, arguments)
    torch.testing.assert_close(logits(model, questions(views=views, more=3)), expected)
    alone = [tensor[1:2] for tensor in arguments]
    torch.testing.assert_close(logits(model, alone), expected[1:2])
    order = torch.randperm(regions.size(-2), generator=torch.Generator().manual_seed(3))
    shuffled = question, question_mask, regions[..., order, :], region_mask[..., order]
    torch.testing.assert_close(logits(model, shuffled), expected)


def region_log_probs(model, question, question_mask, regions, region_mask, answer):
    """Log prior of each region and log probability of the answer under it, one question and one region at a time."""
    found = []
    for row in range(len(question)):
        asked = model.lstm(model.embedding(question[row, : question_mask[row].sum()])[None])[1][0][-1]
        seen = regions[row, : region_mask[row].sum()]
        log_prior = model.score(asked, seen)[0].log_softmax(-1)
        hidden = model.hidden(torch.cat([seen, asked.expand(len(seen), -1)], -1)).relu()
        found.append((log_prior, model.output(hidden).log_softmax(-1)[:, answer[row]]))
    return found


def alignment_model():
    model = make(BottomUp, prior=None)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model, (*questions(), torch.tensor([2, 0, 3]))


def test_the_marginal_is_the_sum_over_regions():
    model, arguments = alignment_model()
    evidence = -AlignmentELBO(max_plate_nesting=1).loss(model, AttentionGuide(model, Marginal()), *arguments)
    expected = sum((p + f).logsumexp(-1) for p, f in region_log_probs(model, *arguments))
    assert evidence == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_the_mixture_has_the_evidence_of_every_answer(prior):
    model, arguments = make(BottomUp, prior=prior()), (*questions(), torch.tensor([2, 0, 3]))
    mixture = model.mixture(*arguments[:-1])
    torch.testing.assert_close(mixture.logsumexp(-1), torch.zeros(3).double())
    evidence = -AlignmentELBO(max_plate_nesting=1).loss(model, AttentionGuide(model, Marginal()), *arguments)
    assert evidence == pytest.approx(mixture.gather(1, arguments[-1][:, None]).sum().item(), rel=1e-10)


def answer_network(model):
    options = {"question": model.encode_question, "hidden": 8, "embedding": 3}
    return AnswerNetwork(FEATURES, ANSWERS, **options).double()


def exact_elbo(model, network, arguments):
    """Sum over questions of E_q[log f] - KL(q | p), region by region."""
    total, scores = 0.0, network(*arguments)
    for row, (log_p, log_f) in enumerate(region_log_probs(model, *arguments)):
        log_q = scores[row, 0, : len(log_p)].log_softmax(-1)
        total = total + (log_q.exp() * (log_f + log_p - log_q)).sum()
    return total


def test_elbo_of_an_inference_network():
    """Enumerated; its gradient by sampled alignments is the exact one in the mean; and what it sees of soft scores."""
    model, arguments = alignment_model()
    network = answer_network(model)
    exact = exact_elbo(model, network, arguments)
    guide = AttentionGuide(model, Amortized(network, Categorical()))
    elbo = -AlignmentELBO(max_plate_nesting=1).loss(model, guide, *arguments)
    assert elbo == pytest.approx(exact.item(), rel=1e-10)
    (gradient,) = torch.autograd.grad(-exact, network.out.weight)
    guide = AttentionGuide(model, Amortized(network, Categorical(enumerate=False)))
    objective = ScoreFunctionELBO()(model, guide)
    torch.manual_seed(0)
    draws = [torch.autograd.grad(objective(*arguments), network.out.weight)[0] for _ in range(60)]
    assert_mean(torch.stack(draws), gradient)
    own = {id(parameter) for parameter in model.parameters()}
    assert not own & {id(parameter) for parameter in network.parameters()}  # no second copy is trained
    hard = nn.functional.one_hot(arguments[-1], ANSWERS).double()
    torch.testing.assert_close(network(*arguments[:-1], hard), network(*arguments))


@pytest.mark.parametrize("normalizer", [Softmax, DoublyNormalized])
def test_the_sum_of_views_is_the_published_one(normalizer):
    model = make(MultiView, views=2, normalizer=lambda heads: normalizer())
    regions = torch.randn(1, 2, 4, FEATURES, dtype=torch.float64)
    mask = torch.ones(1, 2, 4, dtype=torch.bool)
    scores = model.query(regions[0, 0]) @ model.keys[0](regions[0, 1]).T / math.sqrt(8)
    over_queries = scores.softmax(0) if normalizer is DoublyNormalized else scores.exp()
    weights = over_queries / over_queries.sum(1, keepdim=True)
    expected = model.norm(regions[0, 0] + weights @ regions[0, 1])
    torch.testing.assert_close(model._attended(regions, mask)[0], expected)


@pytest.mark.parametrize("normalizer", [Softmax, DoublyNormalized])
def test_each_head_between_views_weighs_its_part_of_the_features(normalizer):
    """Two heads of five features: the first three by the first head, the other two by the second one."""
    model = make(MultiView, views=2, heads=2, normalizer=lambda heads: normalizer())
    regions = torch.randn(1, 2, 4, FEATURES, dtype=torch.float64)
    queries, keys = model.query(regions[0, 0]), model.keys[0](regions[0, 1])
    contexts = []
    for head, part in ((0, slice(0, 3)), (1, slice(3, 5))):
        scores = queries[:, 4 * head :][:, :4] @ keys[:, 4 * head :][:, :4].T / math.sqrt(4)
        over_queries = scores.softmax(0) if normalizer is DoublyNormalized else scores.exp()
        contexts.append(over_queries / over_queries.sum(1, keepdim=True) @ regions[0, 1, :, part])
    expected = model.norm(regions[0, 0] + torch.cat(contexts, -1))
    torch.testing.assert_close(model._attended(regions, torch.ones(1, 2, 4, dtype=torch.bool))[0], expected)
    with pytest.raises(ValueError, match="hidden is 8, and heads is 3; expected a number of heads that divides it"):
        make(MultiView, views=2, heads=3)


def test_without_attention_views_are_regions_of_one_view():
    question, question_mask, regions, region_mask = questions(views=3)
    first = make(MultiView, merge="first")
    state = first.state_dict()
    for merge, part in (("concatenation", slice(None)), ("first", slice(0, 1))):
        model = make(MultiView, merge=merge)
        model.load_state_dict(state)
        together = regions[:, part].flatten(1, 2).unsqueeze(1), region_mask[:, part].flatten(1, 2).unsqueeze(1)
        expected = logits(first, (question, question_mask, *together))
        torch.testing.assert_close(logits(model, (question, question_mask, regions, region_mask)), expected)
