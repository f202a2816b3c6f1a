"""Decoding: against exhaustive search and explicit sums, one sentence, one word and one alignment at a time."""

import itertools
import math
from functools import cache

import pytest
import torch
from torch import nn

from models.decoding import Inference, beam_search, greedy, next_word_log_probs, sample
from models.decoding.hypotheses import largest, length_divisor
from models.decoding.next_word import word_alignment
from models.nmt import Translation, TranslationSizes
from pyro_attention import (
    AlignmentELBO,
    Amortised,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    ExpectedAlignment,
    Gamma,
    LogNormal,
    Marginal,
    Soft,
    Weibull,
)

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4)
SOURCE, TARGET, BEGIN, END = 6, 4, 0, 1
IDS = {"begin": BEGIN, "end": END}
BAYESIAN = {"prior": ContextualGammaPrior(SIZES.memory)}


def make(seed=0, *, std=1.0, end_bias=0.0, dropout=0.3, **options):
    torch.manual_seed(seed)
    model = Translation(SOURCE, TARGET, sizes=SIZES, dropout=dropout, **options).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    model.output.bias.data[END] += end_bias
    return model


def batch(lengths=(3, 5, 1), *, more=0):
    generator = torch.Generator().manual_seed(0)
    sentences = [torch.randint(SOURCE, (length,), generator=generator) for length in lengths]
    longest = max(lengths) + more
    source = torch.stack([nn.functional.pad(words, (0, longest - len(words)), value=5) for words in sentences])
    return source, torch.arange(longest) < torch.tensor(lengths)[:, None]


@torch.no_grad()
def explicit(model, words, prefix, *, k=None, soft=False):
    """log p(y | z) of the next word for each alignment [N, V], log p(z) [N], log p(y) [V], without Translation.step."""
    model = model.eval()
    memory = model.encoder(model.source_embedding(words[None]))[0][0]
    states = [(torch.zeros(1, SIZES.decoder, dtype=torch.float64),) * 2 for _ in model.decoder]
    context = torch.zeros(SIZES.memory, dtype=torch.float64)
    for word in (BEGIN, *prefix):
        below = torch.cat([model.target_embedding.weight[word], context])[None]
        for level, cell in enumerate(model.decoder):
            states[level] = cell(below, states[level])
            below = states[level][0]
        p = model.score(below, memory)[0].softmax(0)
        if k is not None:
            kept = p.argsort(descending=True)[:k]
            p = torch.zeros_like(p).index_copy(0, kept, p[kept] / p[kept].sum())
        context = p @ memory
    contexts = [context] if soft else list(memory)
    features = [(model.from_query(below) + model.from_context(c)).tanh() for c in contexts]
    log_f = torch.cat([model.output(one).log_softmax(-1) for one in features])
    log_p = torch.zeros(1, dtype=torch.float64) if soft else p.log()
    return log_f, log_p, sum(w * f for w, f in zip(log_p.exp(), log_f.exp(), strict=True)).log()


def exhaustive(model, words, max_length):
    """Log probabilities of all sequences that end by `max_length` and of all cut there.

    Third: how long the first sequence is that ends and has the highest log probability of its length, where a search
    that takes this for a sign would stop.
    """
    finished, live, top = {}, {(): 0.0}, None
    for _ in range(max_length):
        grown = {}
        for prefix, total in live.items():
            log_probs = (explicit(model, words, prefix)[2] + total).tolist()
            grown |= {(*prefix, word): value for word, value in enumerate(log_probs)}
        best = max(grown, key=grown.get)
        top = len(best) if top is None and best[-1] == END else top
        finished |= {tokens: value for tokens, value in grown.items() if tokens[-1] == END}
        live = {tokens: value for tokens, value in grown.items() if tokens[-1] != END}
    return finished, live, top


def ranked(sequences, length_penalty):
    """(score, tokens, log probability), best first."""
    scores = [
        (value / length_divisor(len(tokens), length_penalty), tokens, value) for tokens, value in sequences.items()
    ]
    return sorted(scores, reverse=True)


@cache
def random_sequences(length, max_length):
    return exhaustive(make(2), batch()[0][1, :length], max_length)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("max_length", [1, 4])
def test_a_beam_that_drops_nothing_is_exhaustive_search(length_penalty, max_length):
    source, mask = batch()[0][1:2].expand(2, -1), torch.arange(5) < torch.tensor([[3], [2]])
    options = {**IDS, "beam": 108, "max_length": max_length, "length_penalty": length_penalty}
    found = beam_search(make(2), source, mask, keep=5, **options)
    first = beam_search(make(2), source, mask, **options)  # stops earlier
    for hypotheses, (best,), length in zip(found, first, (3, 2), strict=True):
        finished, live, _ = random_sequences(length, max_length)
        expected = [*ranked(finished, length_penalty), *ranked(live, length_penalty)]
        assert len(hypotheses) == min(5, len(expected))
        for one, (score, tokens, value) in zip(hypotheses, expected, strict=False):
            assert (one.tokens, one.finished) == (tokens, tokens[-1] == END)
            assert (one.score, one.log_prob) == pytest.approx((score, value), rel=1e-10)
        assert best == hypotheses[0]


def all_different(tokens, size):
    """Whether no so many tokens in a row come twice, the begin token among them."""
    rows = [(BEGIN, *tokens)[i : i + size] for i in range(len(tokens) - size + 2)]
    return len(set(rows)) == len(rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_tokens_in_a_row_come_twice(size):
    """Exhaustive search among the sentences that do not repeat themselves."""
    source, mask = batch()[0][1:2, :3], torch.ones(1, 3, dtype=torch.bool)
    (found,) = beam_search(make(2), source, mask, **IDS, beam=108, max_length=4, keep=20, no_repeat=size)
    finished, live, _ = random_sequences(3, 4)
    kept = [[one for one in ranked(some, 1.0) if all_different(one[1], size)] for some in (finished, live)]
    expected = [tokens for _, tokens, _ in [*kept[0], *kept[1]]][:20]
    assert [one.tokens for one in found] == expected
    assert size > 2 or any(not all_different(tokens, size) for _, tokens, _ in ranked(finished, 1.0))


def test_an_end_with_the_highest_log_probability_does_not_stop_the_search():
    """Trained on 8 empty sentences, 7 of three words and 5 of one: the empty one leads at first, and then loses."""
    model = make(std=0.5, dropout=0.0)
    target = torch.tensor([[END, 0, 0, 0]] * 8 + [[2, 3, 3, END]] * 7 + [[0, END, 0, 0]] * 5)
    mask = (target == END).cumsum(1) - (target == END).long() == 0
    before = nn.functional.pad(target, (1, -1), value=BEGIN)
    source = torch.tensor([[3, 4]])
    real = torch.ones(20, 2, dtype=torch.bool)
    loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss(source.expand(20, -1), real, before, target, mask).backward()
        optimiser.step()
    finished, _, top = exhaustive(model, source[0], 4)
    for length_penalty, expected in ((0.0, (END,)), (1.0, (2, 3, 3, END)), (2.0, (2, 3, 3, END))):
        assert ranked(finished, length_penalty)[0][1] == expected
        found = beam_search(model, source, real[:1], **IDS, beam=4, max_length=4, length_penalty=length_penalty)
        assert found[0][0].tokens == expected
    assert top == 1


@pytest.mark.parametrize("k_max", [None, 1, 2, 5, 9])
@pytest.mark.parametrize("soft", [False, True])
def test_next_words_are_the_explicit_sum(k_max, soft):
    model, (source, mask), prefix = make().eval(), batch(), (2, 3, 0)
    state = model.start(model.encode(source, mask), mask)
    for word in (BEGIN, *prefix):
        ids = torch.full((3,), word)
        step = model.step(state, model.embed(ids), k_max=k_max)
        state = step.state
    inference = Inference(k_max=k_max, family=ExpectedAlignment() if soft else None)
    log_probs = next_word_log_probs(model, step, inference)
    chunked = next_word_log_probs(model, step, inference, chunk_rows=1)
    torch.testing.assert_close(log_probs, chunked)
    for b in range(3):
        words = source[b, : mask[b].sum()]
        expected = explicit(model, words, prefix, k=k_max, soft=soft)[2]
        torch.testing.assert_close(log_probs[b], expected)
        if k_max == 5:  # as many as there are
            torch.testing.assert_close(expected, explicit(model, words, prefix, soft=soft)[2])
        if k_max == 1 and not soft:  # hard attention
            log_f, log_p, _ = explicit(model, words, prefix, k=1)
            torch.testing.assert_close(log_probs[b], log_f[log_p.argmax()])


@pytest.mark.parametrize("k_max", [None, 2])
def test_alignments_are_by_bayes_rule(k_max):
    model, (source, mask) = make(), batch(more=2)
    found = beam_search(model, source, mask, inference=Inference(k_max=k_max), **IDS, beam=4, keep=2, max_length=5)
    for b, hypotheses in enumerate(found):
        words = source[b, : mask[b].sum()]
        for one in hypotheses:
            assert one.alignments.shape == (len(one.tokens), len(words))
            total = 0.0
            for j, token in enumerate(one.tokens):
                log_f, log_p, log_probs = explicit(model, words, one.tokens[:j], k=k_max)
                total += log_probs[token].item()
                posterior = log_p.exp() * log_f[:, token].exp() / log_probs[token].exp()
                torch.testing.assert_close(one.alignments[j], posterior)
            assert one.log_prob == pytest.approx(total, rel=1e-10)
            torch.testing.assert_close(one.alignments.sum(1), torch.ones(len(one.tokens), dtype=torch.float64))


def test_soft_attention_and_bayesian_attention_at_its_mean_agree():
    model, other, (source, mask) = make(), make(**BAYESIAN), batch()
    other.load_state_dict(model.state_dict(), strict=False)
    options = {**IDS, "beam": 3, "max_length": 5}
    first = beam_search(model, source, mask, inference=Inference(family=ExpectedAlignment()), **options)
    network = Amortised(nn.Linear(1, 1), Gamma())
    for family in (None, Soft(), Weibull(), network):
        found = beam_search(other, source, mask, inference=Inference(family=family), **options)
        assert scores_of(found) == approx(scores_of(first))
    again = beam_search(other, source, mask, inference=Inference(family=Soft(), samples=2), **options)
    assert scores_of(again) == approx(scores_of(first))
    # the row of one hypothesis: attention weights before the first word
    state = model.eval().start(model.encode(source, mask), mask)
    scores = model.step(state, model.embed(torch.full((3,), BEGIN))).scores
    torch.testing.assert_close(first[1][0].alignments[0], scores[1].softmax(0))


def scores_of(found):
    return [(one.tokens, one.score) for hypotheses in found for one in hypotheses]


def approx(pairs):
    return [(tokens, pytest.approx(score, rel=1e-9)) for tokens, score in pairs]


def test_draws_of_the_weights_are_averaged():
    """The mean probability over draws of a narrow posterior is near that of the mean, of a wide one it is not."""
    model, (source, mask) = make(**BAYESIAN).eval(), batch()
    state = model.start(model.encode(source, mask), mask)
    step = model.step(state, model.embed(torch.full((3,), BEGIN)))
    torch.manual_seed(0)
    family, count = LogNormal(scale=2.0).double(), 4000
    wide = next_word_log_probs(model, step, Inference(family=family, samples=count)).exp()
    # E[S] = exp(score) for every scale
    log_s = step.scores.masked_fill(~mask, -math.inf) - 2.0 + 2.0 * torch.randn(count, 3, 5, dtype=torch.float64)
    contexts = torch.einsum("sbn,bnd->sbd", log_s.softmax(-1), state.memory)
    f = model.likelihood(step.queries, contexts).logits.exp()
    error = (2 * f.var(0) / count).sqrt()
    assert ((wide - f.mean(0)).abs() <= 4 * error + 1e-9).all()
    mean = next_word_log_probs(model, step).exp()
    assert ((wide - mean).abs() > 4 * error)[:2].any()
    narrow = next_word_log_probs(model, step, Inference(family=LogNormal(scale=1e-6).double(), samples=3))
    torch.testing.assert_close(narrow.exp(), mean, rtol=0, atol=1e-5)
    words = torch.zeros(3, dtype=torch.int64)
    rows = word_alignment(model, step, words, Inference(family=family, samples=3, k_max=2))
    torch.testing.assert_close(rows.sum(1), torch.ones(3, dtype=torch.float64))
    assert ((rows > 0) <= mask).all()


@pytest.mark.parametrize("k_max", [None, 2])
def test_greedy_is_a_beam_of_one(k_max):
    source, mask = batch()
    for seed in range(5):
        model = make(seed)
        options = {**IDS, "max_length": 6, "inference": Inference(k_max=k_max)}
        path = greedy(model, source, mask, **options)
        found = beam_search(model, source, mask, beam=1, length_penalty=0.0, **options)
        assert scores_of([path]) == approx(scores_of(found))
        for one, (other,) in zip(path, found, strict=True):
            assert one.finished == other.finished
            torch.testing.assert_close(one.alignments, other.alignments)


@pytest.mark.parametrize("search", [beam_search, greedy])
def test_batches_and_padding_change_nothing(search):
    model, (source, mask) = make(1), batch()
    together = search(model, source, mask, **IDS, max_length=7)
    padded = search(model, *batch(more=4), **IDS, max_length=7)
    single = [
        search(model, source[b : b + 1, :n], mask[b : b + 1, :n], **IDS, max_length=7)[0]
        for b, n in ((0, 3), (1, 5), (2, 1))
    ]
    unpack = (lambda found: found) if search is greedy else (lambda found: list(itertools.chain(*found)))
    for others in (padded, single):
        for one, other in zip(unpack(together), unpack(others), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, rel=1e-10)
            torch.testing.assert_close(one.alignments, other.alignments)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_of_samples(temperature):
    model, (source, mask) = make(std=0.7), batch((3,))
    count, first, second = 4000, torch.zeros(TARGET), torch.zeros(TARGET)
    options = {**IDS, "temperature": temperature, "max_length": 2, "alignments": False}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    draws = sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert draws == sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    for one in draws:
        first[one.tokens[0]] += 1
        if one.tokens[0] == 2:
            second[one.tokens[1]] += 1
    for seen, prefix in ((first, ()), (second, (2,))):
        log_probs = explicit(model, source[0], prefix)[2]
        p, n = (log_probs / temperature).softmax(0), seen.sum()
        assert n > 100
        assert ((seen / n - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all()
    one = next(one for one in draws if len(one.tokens) == 2)
    total = sum(explicit(model, source[0], one.tokens[:j])[2][one.tokens[j]].item() for j in range(2))
    assert one.log_prob == pytest.approx(total, rel=1e-10)


def test_cut_at_the_largest_length():
    model, (source, mask) = make(end_bias=-50.0), batch()
    for one in (*greedy(model, source, mask, **IDS, max_length=3), *sample(model, source, mask, **IDS, max_length=3)):
        assert not one.finished
        assert one.words == one.tokens
        assert len(one.tokens) == 3
    # finished ones come first, although the others score better
    for first, *others in beam_search(model, source, mask, **IDS, beam=16, keep=2, max_length=1):
        assert first.finished
        assert (first.tokens, first.words) == ((END,), ())
        assert not others[0].finished
        assert others[0].score > first.score


def test_ties_go_to_the_first():
    model, (source, mask) = make(), batch((2,))
    for parameter in model.output.parameters():
        nn.init.zeros_(parameter)  # all words are equally probable
    options = {"beam": 6, "keep": 3, "max_length": 3, "length_penalty": 0.0}
    found = beam_search(model, source, mask, **IDS, **options, inference=Inference(family=ExpectedAlignment()))
    assert [one.tokens for one in found[0]] == [(1,), (0, 1), (2, 1)]
    values = torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0], [-math.inf, 0.0, -math.inf, 0.0, 1.0]])
    assert largest(values, 3)[1].tolist() == [[0, 2, 1], [4, 1, 3]]
    assert largest(values, 5)[1].tolist() == [[0, 2, 1, 3, 4], [4, 1, 3, 0, 2]]


def test_every_module_keeps_its_mode_and_nothing_needs_a_gradient():
    model, (source, mask) = make(), batch()
    model.encoder.eval()
    first = beam_search(model, source, mask, **IDS, max_length=4)
    assert model.training
    assert not model.encoder.training
    assert not first[0][0].alignments.requires_grad
    assert scores_of(first) == scores_of(beam_search(model, source, mask, **IDS, max_length=4))
    with pytest.raises(ValueError, match=r"sentences \[0\] of the batch have no words"):
        beam_search(model, source[:1], torch.zeros_like(mask[:1]), **IDS)
    assert model.training
    assert greedy(model, source, mask, **IDS, alignments=False)[0].alignments is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 0}, "beam is 0, expected an integer of at least 1"),
        ({"max_length": 0}, "max_length is 0, expected an integer of at least 1"),
        ({"keep": 11}, "keep is 11, expected at most the 10 hypotheses"),
        ({"begin": 4}, r"begin is 4, expected an id in 0 \.\. 3"),
        ({"end": -1}, r"end is -1, expected an id in 0 \.\. 3"),
        ({"length_penalty": -1.0}, "length_penalty is -1.0, expected a number of at least 0"),
        ({"no_repeat": 0}, "no_repeat is 0, expected a number of tokens of at least 1"),
        ({"inference": Inference(samples=2)}, "samples is 2, expected 0: the sum over alignments is exact"),
        ({"inference": Inference(family=Weibull())}, "kind 'positive weights', which does not fit the model's prior"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        beam_search(make(), *batch(), **{**IDS, **changes})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k_max": 0}, ValueError, "k_max is 0, expected an integer of at least 1"),
        ({"samples": -1}, ValueError, "samples is -1, expected an integer of at least 0"),
        ({"family": "soft"}, TypeError, "family is 'soft', expected a Family"),
    ],
)
def test_bad_inference(options, error, message):
    with pytest.raises(error, match=message):
        Inference(**options)


def test_bad_input():
    model, (source, mask) = make(), batch()
    with pytest.raises(ValueError, match=r"source_mask has shape \(3, 4\) and dtype torch.bool, expected torch.bool"):
        greedy(model, source, mask[:, 1:], **IDS)
    with pytest.raises(ValueError, match="source_mask has words behind padding"):
        greedy(model, source, mask.flip(1), **IDS)
    with pytest.raises(ValueError, match=r"source has shape \(5,\)"):
        greedy(model, source[0], mask[0], **IDS)
    with pytest.raises(ValueError, match=r"temperature is 0\.0, expected a positive finite number"):
        sample(model, source, mask, **IDS, temperature=0.0)
    bayesian = make(**BAYESIAN)
    with pytest.raises(ValueError, match="which does not fit the model's prior ContextualGammaPrior"):
        greedy(bayesian, source, mask, inference=Inference(family=Categorical()), **IDS)
    for family in (None, Amortised(nn.Linear(1, 1), Gamma())):
        with pytest.raises(ValueError, match="expected a family to draw from"):
            greedy(bayesian, source, mask, inference=Inference(family=family, samples=2), **IDS)
    model.output.bias.data[2] = math.nan
    for search in (beam_search, greedy, sample):
        with pytest.raises(ValueError, match="log probabilities of 3 sentences are NaN"):
            search(model, source, mask, **IDS)


@pytest.mark.cuda
def test_a_gpu_finds_the_same():
    model, (source, mask) = make(), batch()
    options = {**IDS, "beam": 4, "keep": 2, "max_length": 6}
    first = beam_search(model, source, mask, **options)
    model, source, mask = model.cuda(), source.cuda(), mask.cuda()
    second = beam_search(model, source, mask, **options)
    assert scores_of(first) == approx(scores_of(second))
    assert second[0][0].alignments.is_cuda
    assert sample(model, source, mask, **IDS, seed=0) == sample(model, source, mask, **IDS, seed=0)
