"""Decoding: against explicit sums one alignment at a time, exhaustive search and Bayes' rule."""

import math
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.decoding import (
    Inference,
    beam_search,
    next_word_log_probs,
    next_word_mixture,
    sample,
    search_words,
    word_alignment,
)
from models.nmt import Translation, TranslationSizes
from pyro_attention import (
    ContextualGammaPrior,
    LogNormal,
    Marginal,
    Soft,
    Weibull,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.ops.sparsemax import sparsemax

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4)
SOURCE, TARGET, BEGIN, END = 6, 4, 0, 1
IDS = {"begin": BEGIN, "end": END}
BAYESIAN = {"prior": ContextualGammaPrior(SIZES.memory)}


def make(seed=0, *, std=1.0, end_bias=0.0, **options):
    torch.manual_seed(seed)
    model = Translation(SOURCE, TARGET, sizes=SIZES, **options).double()
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


softmax = partial(torch.softmax, dim=0)


@torch.no_grad()
def explicit(model, words, prefix, *, k=None, soft=False, normalize=softmax):
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
        p = normalize(model.score(below, memory)[0])
        if k is not None:
            kept = p.argsort(descending=True)[:k]
            p = torch.zeros_like(p).index_copy(0, kept, p[kept] / p[kept].sum())
        context = p @ memory
    contexts = [context] if soft else list(memory)
    features = [(model.from_query(below) + model.from_context(c)).tanh() for c in contexts]
    log_f = torch.cat([model.output(one).log_softmax(-1) for one in features])
    log_p = torch.zeros(1, dtype=torch.float64) if soft else p.log()
    return log_f, log_p, sum(w * f for w, f in zip(log_p.exp(), log_f.exp(), strict=True)).log()


def step_after(model, source, mask, prefix=(2, 3, 0), k_max=None):
    state = model.start(model.encode(source, mask), mask)
    for word in (BEGIN, *prefix):
        step = model.step(state, model.embed(torch.full((len(source),), word)), k_max=k_max)
        state = step.state
    return step


def assert_same_scores(found, expected):
    (tokens, scores), (others, wanted) = (
        zip(*((one.tokens, one.score) for hypotheses in some for one in hypotheses), strict=True)
        for some in (found, expected)
    )
    assert tokens == others
    assert scores == pytest.approx(wanted, rel=1e-9)


# the next word


@pytest.mark.parametrize("k_max", [None, 1, 9])
@pytest.mark.parametrize("soft", [False, True])
def test_next_words_are_the_explicit_sum(k_max, soft):
    model, (source, mask), prefix = make().eval(), batch(), (2, 3, 0)
    step, inference = (
        step_after(model, source, mask, k_max=k_max),
        Inference(k_max=k_max, family=Soft() if soft else None),
    )
    log_probs = next_word_log_probs(model, step, inference)
    torch.testing.assert_close(log_probs, next_word_log_probs(model, step, inference, chunk_rows=1))
    for b in range(3):
        expected = explicit(model, source[b, mask[b]], prefix, k=k_max, soft=soft)[2]
        torch.testing.assert_close(log_probs[b], expected)


@pytest.mark.parametrize("terms", [1, 2, 9])
def test_the_most_probable_terms_are_renormalized_and_the_feed_is_that_of_all(terms):
    model, (source, mask) = make().eval(), batch()
    log_probs = next_word_log_probs(model, step_after(model, source, mask), Inference(terms=terms))
    for b in range(3):
        log_f, log_p, _ = explicit(model, source[b, mask[b]], (2, 3, 0))
        kept = log_p.argsort(descending=True)[:terms]
        expected = (log_f[kept] + log_p[kept].log_softmax(0)[:, None]).logsumexp(0)
        torch.testing.assert_close(log_probs[b], expected)


@pytest.mark.parametrize(("top", "k_max"), [(None, None), (2, None), (None, 3)])
def test_a_sparse_prior_is_summed_over_its_support(top, k_max):
    model, (source, mask) = make(prior=SparseAlignmentPrior(k=top)).eval(), batch()
    step, inference = step_after(model, source, mask, k_max=k_max), Inference(k_max=k_max, family=Marginal())
    log_probs = next_word_log_probs(model, step, inference)
    mixture, log_weights = next_word_mixture(model, step, inference)
    rows, sizes = word_alignment(model, step, torch.full((3,), 2), inference), []
    for b in range(3):
        words, normalize = source[b, mask[b]], partial(sparsemax, k=top)
        log_f, log_p, expected = explicit(model, words, (2, 3, 0), k=k_max, normalize=normalize)
        torch.testing.assert_close(log_probs[b], expected)
        torch.testing.assert_close(rows[b, : len(words)], (log_p + log_f[:, 2]).softmax(0))
        sizes.append(log_p.isfinite().sum())
    assert mixture.size(1) == log_weights.size(1) == max(sizes)


def test_draws_of_the_weights_are_averaged():
    """The mean probability over draws of a narrow posterior is near that of the mean, of a wide one it is not."""
    model, (source, mask) = make(**BAYESIAN).eval(), batch()
    step, count = step_after(model, source, mask, ()), 2000
    family = LogNormal(scale=2.0).double()
    wide = next_word_log_probs(model, step, Inference(family=family, samples=count)).exp()
    # E[S] = exp(score) for every scale
    log_s = step.scores.masked_fill(~mask, -math.inf) - 2.0 + 2.0 * torch.randn(count, 3, 5, dtype=torch.float64)
    contexts = torch.einsum("sbn,bnd->sbd", log_s.softmax(-1), step.state.memory)
    f = model.likelihood(step.queries, contexts).logits.exp()
    error = (2 * f.var(0) / count).sqrt()
    assert ((wide - f.mean(0)).abs() <= 4 * error + 1e-9).all()
    mean = next_word_log_probs(model, step).exp()
    assert ((wide - mean).abs() > 4 * error)[:2].any()
    narrow = Inference(family=LogNormal(scale=1e-6).double(), samples=3)
    torch.testing.assert_close(next_word_log_probs(model, step, narrow).exp(), mean, rtol=0, atol=1e-5)
    log_probs, log_weights = next_word_mixture(model, step, narrow)
    torch.testing.assert_close((log_probs + log_weights.unsqueeze(-1)).logsumexp(1).exp(), mean, rtol=0, atol=1e-5)
    rows = word_alignment(model, step, torch.zeros(3).long(), Inference(family=family, samples=3, k_max=2))
    torch.testing.assert_close(rows.sum(1), torch.ones(3, dtype=torch.float64))


# beam search


@cache
def random_sequences(length, max_length=4):
    """Log probabilities of all sequences that end by `max_length` and of all cut there, of one model and sentence."""
    model, words, finished, live = make(2), batch()[0][1, :length], {}, {(): 0.0}
    for _ in range(max_length):
        grown = {}
        for prefix, total in live.items():
            log_probs = (explicit(model, words, prefix)[2] + total).tolist()
            grown |= {(*prefix, word): value for word, value in enumerate(log_probs)}
        finished |= {tokens: value for tokens, value in grown.items() if tokens[-1] == END}
        live = {tokens: value for tokens, value in grown.items() if tokens[-1] != END}
    return finished, live


def ranked(sequences, length_penalty):
    """(score, tokens, log probability), best first."""
    scores = [(value / ((5 + len(tokens)) / 6) ** length_penalty, tokens, value) for tokens, value in sequences.items()]
    return sorted(scores, reverse=True)


@pytest.mark.parametrize(("length_penalty", "max_length"), [(0.0, 4), (2.0, 4), (1.0, 1)])
def test_a_beam_that_drops_nothing_is_exhaustive_search(length_penalty, max_length):
    source, mask = batch()[0][1:2].expand(2, -1), torch.arange(5) < torch.tensor([[3], [2]])
    options = {**IDS, "beam": 108, "max_length": max_length, "length_penalty": length_penalty}
    found = beam_search(make(2), source, mask, keep=5, **options)
    first = beam_search(make(2), source, mask, **options)  # stops earlier
    for hypotheses, (best,), length in zip(found, first, (3, 2), strict=True):
        finished, live = random_sequences(length, max_length)
        expected = [*ranked(finished, length_penalty), *ranked(live, length_penalty)]
        assert len(hypotheses) == min(5, len(expected))
        for one, (score, tokens, value) in zip(hypotheses, expected, strict=False):
            assert (one.tokens, one.finished) == (tokens, tokens[-1] == END)
            assert (one.score, one.log_prob) == pytest.approx((score, value), rel=1e-10)
            assert one.words == (tokens[:-1] if one.finished else tokens)
        assert_same_scores([[best]], [hypotheses[:1]])


@pytest.mark.parametrize("size", [1, 2])
def test_no_tokens_in_a_row_come_twice(size):
    """Exhaustive search among the sentences that do not repeat themselves, the begin token among their tokens."""

    def all_different(tokens):
        rows = [(BEGIN, *tokens)[i : i + size] for i in range(len(tokens) - size + 2)]
        return len(set(rows)) == len(rows)

    source, mask = batch()[0][1:2, :3], torch.ones(1, 3, dtype=torch.bool)
    (found,) = beam_search(make(2), source, mask, **IDS, beam=108, max_length=4, keep=20, no_repeat=size)
    kept = [tokens for some in random_sequences(3) for _, tokens, _ in ranked(some, 1.0) if all_different(tokens)]
    assert [one.tokens for one in found] == kept[:20]


def test_an_end_with_the_highest_log_probability_does_not_stop_the_search():
    """Of a chain of words: the empty sentence leads at first, and then loses."""
    table = torch.zeros(6, 6)
    table[BEGIN, [END, 2, 5]] = torch.tensor([0.4, 0.35, 0.25])
    table[2, 3] = table[3, 4] = table[4, END] = table[5, END] = table[END, END] = 1.0
    start = SimpleNamespace(memory=torch.zeros(1, 1, 1))
    start.reorder = start.select = lambda rows: start
    for length_penalty, expected in ((0.0, (END,)), (1.0, (2, 3, 4, END)), (2.0, (2, 3, 4, END))):
        options = {**IDS, "beam": 2, "max_length": 4, "length_penalty": length_penalty}
        ((best,),) = search_words(start, lambda state, words: (table[words].log(), state), **options)
        assert best.tokens == expected


@pytest.mark.parametrize("k_max", [None, 2])
def test_alignments_are_by_bayes_rule_and_padding_changes_nothing(k_max):
    model, options = make(), {**IDS, "inference": Inference(k_max=k_max), "beam": 4, "keep": 2, "max_length": 5}
    source, mask = batch(more=2)
    found = beam_search(model, source, mask, **options)
    for b, hypotheses in enumerate(found):
        words = source[b, mask[b]]
        (alone,) = beam_search(model, words[None], mask[b, mask[b]][None], **options)
        assert_same_scores([alone], [hypotheses])
        for one in hypotheses:
            assert one.alignments.shape == (len(one.tokens), len(words))
            total = 0.0
            for j, token in enumerate(one.tokens):
                log_f, log_p, log_probs = explicit(model, words, one.tokens[:j], k=k_max)
                total += log_probs[token].item()
                posterior = log_p.exp() * log_f[:, token].exp() / log_probs[token].exp()
                torch.testing.assert_close(one.alignments[j], posterior)
            assert one.log_prob == pytest.approx(total, rel=1e-10)


# samples


@pytest.mark.parametrize("search", [beam_search, sample])
def test_modes_of_modules_are_restored(search):
    """Of each by itself, as where a frozen encoder is in evaluation mode while the rest trains; also after an error."""
    model = make(dropout=0.5).train()
    model.encoder.eval()
    before = {name: module.training for name, module in model.named_modules()}
    first = search(model, *batch(), **IDS, max_length=3, seed=0)
    with pytest.raises(IndexError):
        search(model, batch()[0] + SOURCE, batch()[1], **IDS, max_length=3)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert first == search(model.eval(), *batch(), **IDS, max_length=3, seed=0)


def test_frequencies_of_samples():
    model, (source, mask), temperature, count = make(std=0.7), batch((3,)), 0.5, 2000
    options = {**IDS, "temperature": temperature, "max_length": 2}
    state = torch.get_rng_state()
    draws = sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert draws == sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    seconds = [one.tokens[1] for one in draws if one.tokens[0] == 2]
    for words, prefix in (([one.tokens[0] for one in draws], ()), (seconds, (2,))):
        seen = torch.bincount(torch.tensor(words), minlength=TARGET)
        p = (explicit(model, source[0], prefix)[2] / temperature).softmax(0)
        assert len(words) > 100
        assert ((seen / len(words) - p).abs() <= 4 * (p * (1 - p) / len(words)).sqrt()).all()
    one = next(one for one in draws if len(one.tokens) == 2)
    total = sum(explicit(model, source[0], one.tokens[:j])[2][one.tokens[j]].item() for j in range(2))
    assert one.log_prob == pytest.approx(total, rel=1e-10)
    cut = sample(make(end_bias=-50.0), source, mask, **IDS, max_length=3)[0]
    assert (len(cut.tokens), cut.finished) == (3, False)


def test_bad_input():
    with pytest.raises(ValueError, match="kind 'positive weights', which does not fit the model's prior"):
        beam_search(make(), *batch(), **IDS, inference=Inference(family=Weibull()))
    with pytest.raises(ValueError, match="log probabilities are NaN"):
        beam_search(make(end_bias=math.nan), *batch(), **IDS)
