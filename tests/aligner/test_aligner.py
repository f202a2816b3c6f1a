"""The aligner against sums over all alignments, against links that are known, and at the edges of its input."""

import unicodedata
from itertools import product
from math import inf, isnan, log
from threading import Event

import numpy as np
import pyro
import pytest
import torch

from experiments.data.text.parallel import toy_translation
from pyro_attention import AlignmentPrior, Dense, LatentAttention, exact_alignments
from pyro_attention.aligner import AlignedPair, Aligner, cross_fit
from pyro_attention.aligner._backoff import Backoff
from pyro_attention.aligner._ensemble import Ensemble
from pyro_attention.aligner._moves import NO_LINK, BandedMoves, DenseMoves
from pyro_attention.aligner._training import PRIOR_WEIGHT, TrainingText, part_count, train
from pyro_attention.aligner.hmm import markov_posterior, uniform_posterior
from pyro_attention.aligner.output import pair_links
from pyro_attention.analysis import GoldAlignment, alignment_error_rate

GERMAN = [line.split() for line in ("das haus", "das buch", "ein buch", "ein haus", "das alte haus")] * 4
ENGLISH = [line.split() for line in ("the house", "the book", "a book", "a house", "the old house")] * 4


@pytest.fixture(scope="module")
def small():
    return Aligner.fit(GERMAN, ENGLISH)


def enumerated(emission, null, jumps):
    """Log evidence, and expected links, NULLs and jumps, of one sentence pair by a sum over all alignments."""
    (num_target, num_source), reach = emission.shape, len(jumps) // 2
    evidence, links, unlinked, jumped = 0.0, torch.zeros_like(emission), torch.zeros_like(null), torch.zeros_like(jumps)
    for alignment in product(range(-1, num_source), repeat=num_target):  # -1 is NULL
        probability, last, used = 1.0, -1, []
        for j, i in enumerate(alignment):
            if i < 0:
                probability *= NO_LINK * null[j]
                continue
            width = [max(-reach, min(reach, k - last)) + reach for k in range(num_source)]
            probability *= (1 - NO_LINK) * jumps[width[i]] / jumps[width].sum() * emission[j, i]
            used.append(width[i])
            last = i
        evidence += probability
        for j, i in enumerate(alignment):
            (unlinked[j : j + 1] if i < 0 else links[j, i : i + 1]).add_(probability)
        for width in used:
            jumped[width] += probability
    return log(evidence), links / evidence, unlinked / evidence, jumped / evidence


def test_sums_over_all_alignments():
    """A padded batch of pairs of different lengths, jumps longer than the table has among them."""
    torch.manual_seed(0)
    sizes = [(4, 4), (2, 3), (3, 1), (1, 4)]
    emission, null = torch.zeros(4, 4, 4, dtype=torch.float64), torch.full((4, 4), 1 / NO_LINK, dtype=torch.float64)
    for column, (n, m) in enumerate(sizes):
        emission[:m, :n, column], null[:m, column] = torch.rand(m, n), torch.rand(m)
    jumps = torch.rand(5, dtype=torch.float64)
    found = markov_posterior(emission.clone(), null, jumps, torch.tensor([n for n, _ in sizes]))
    total = torch.zeros_like(jumps)
    for column, (n, m) in enumerate(sizes):
        evidence, links, unlinked, jumped = enumerated(emission[:m, :n, column], null[:m, column], jumps)
        total += jumped
        assert found.log_evidence[column].item() == pytest.approx(evidence)
        torch.testing.assert_close(found.links[:m, :n, column], links)
        torch.testing.assert_close(found.null[:m, column], unlinked)
    torch.testing.assert_close(found.jumps, total)


@pytest.mark.parametrize(("num_source", "reach"), [(1, 2), (2, 3), (3, 3), (4, 3), (7, 3), (6, 8), (40, 5)])
def test_jumps_as_a_convolution_are_those_of_the_matrix(num_source, reach):
    """Of texts shorter and longer than the table, in batches of several lengths."""
    torch.manual_seed(0)
    jumps, lengths = torch.rand(2 * reach + 1).double(), torch.randint(1, num_source + 1, (3,))
    before, words = torch.rand(5, num_source + 1, 3).double(), torch.rand(5, num_source, 3).double()
    dense, banded = DenseMoves(jumps, num_source), BandedMoves(jumps, num_source)
    torch.testing.assert_close(banded.scale(lengths), dense.scale(lengths))
    torch.testing.assert_close(banded.count(before, words), dense.count(before, words))
    for name, given, size in (("follow", before[0], num_source), ("lead", words[0], num_source + 1)):
        found = [torch.ones(size, 3).double() for _ in range(2)]
        for moves, out in zip((dense, banded), found, strict=True):
            getattr(moves, name)(given, out)
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("shape", [(1, 1, 2), (6, 4, 3), (9, 420, 1)])
def test_posteriors_without_the_count_of_jumps_are_the_same(shape):
    """These hold two steps of the forward pass in memory in place of all."""
    generator = torch.Generator().manual_seed(0)
    emission, null = torch.rand(shape, generator=generator), torch.rand(shape[0], shape[2], generator=generator)
    jumps, lengths = torch.rand(7, generator=generator), torch.full((shape[2],), shape[1])
    expected = markov_posterior(emission.clone(), null, jumps, lengths)
    posterior = markov_posterior(emission.clone(), null, jumps, lengths, count_jumps=False)
    assert posterior.jumps.eq(0).all()
    for name in ("links", "null", "log_evidence"):
        torch.testing.assert_close(getattr(posterior, name), getattr(expected, name), rtol=0, atol=0)


def test_the_alignment_is_a_latent_site_with_its_exact_posterior():
    """Without jumps, NULL being one more key, the posterior is that of an attention site given the words."""
    torch.manual_seed(0)
    emission, null = torch.rand(3, 2, 1), torch.rand(3, 1)
    prior = torch.tensor([NO_LINK, (1 - NO_LINK) / 2, (1 - NO_LINK) / 2]).log()
    attention = LatentAttention("alignment", AlignmentPrior())
    values = torch.cat([null, emission[..., 0]], -1)[:, None, :, None]  # what each key says of the word

    def model():
        with pyro.plate("words", 3):
            says = attention(prior.expand(3, 1, 3), values, layout=Dense(event_dim=2)).context.flatten(-2).squeeze(-1)
            pyro.factor("word", says.log())

    weights = exact_alignments(model)["alignment"][:, 0]
    found = uniform_posterior(emission, null, torch.ones(3), torch.tensor([2]))
    torch.testing.assert_close(torch.cat([found.null, found.links[..., 0]], -1), weights)


def test_probabilities_are_right_where_the_model_is():
    """Alignments and words drawn from the model: of the links of probability p, p are right, within standard errors."""
    torch.manual_seed(0)
    num_pairs, num_target, num_source, reach = 2000, 6, 7, 8
    jumps = torch.rand(2 * reach + 1)
    says, nothing = torch.distributions.Dirichlet(torch.full((12, 9), 0.3)).sample(), torch.full((9,), 1 / 9)
    source = torch.randint(12, (num_pairs, num_source))
    last, emission, null, links = torch.full((num_pairs,), -1), [], [], []
    for _ in range(num_target):
        weights = jumps[torch.arange(num_source) - last[:, None] + reach]
        drawn = weights.multinomial(1)[:, 0]
        linked = torch.rand(num_pairs) > NO_LINK
        last = torch.where(linked, drawn, last)
        given = torch.where(linked[:, None], says[source.gather(1, drawn[:, None])[:, 0]], nothing)
        word = given.multinomial(1)
        emission.append(says[source].gather(2, word[:, None].expand(-1, num_source, 1))[..., 0])
        null.append(nothing[word[:, 0]])
        links.append(torch.nn.functional.one_hot(drawn, num_source) * linked[:, None])
    lengths = torch.full((num_pairs,), num_source)
    found = markov_posterior(torch.stack(emission).mT, torch.stack(null), jumps, lengths).links.mT.flatten()
    right = torch.stack(links).flatten().float()
    for low in torch.arange(0, 1, 0.1):
        some = (found >= low) & (found < low + 0.1)
        error = (found[some] * (1 - found[some])).mean().div(some.sum()).sqrt()
        assert (right[some].mean() - found[some].mean()).abs() < 4 * error


def test_known_links_are_found_and_their_probabilities_are_right():
    """On the generated corpus: few errors, the surest half nearly without, and about as many right links as it says."""
    text = toy_translation(train=1500, val=1, test=500)
    train, test = text["train"], text["test"]
    source, target = (
        [line.split() for line in (*a, *b)] for a, b in ((train.source, test.source), (train.target, test.target))
    )
    pairs = Aligner.fit(source, target)(source[-500:], target[-500:])
    gold = [GoldAlignment(links.links) for links in test.alignments]
    assert alignment_error_rate([pair.alignment for pair in pairs], gold).aer < 0.15
    links = [
        (p, link in truth.sure)
        for pair, truth in zip(pairs, gold, strict=True)
        for link, p in pair.probabilities.items()
    ]
    sure = [right for p, right in links if p > 0.9]
    assert len(sure) > len(links) / 2
    assert sum(sure) > 0.95 * len(sure)
    # expected and true numbers of right links
    assert sum(p for p, _ in links) == pytest.approx(sum(right for _, right in links), rel=0.08)


def test_every_pair_has_its_answer(small):
    """Empty sides, unknown words, long lines; a pair's answer does not depend on those beside it."""
    source = [["das", "haus"], [], ["buch"], ["quatsch"], ["das", "haus"] * 300, []]
    target = [["the", "house"], ["the"], [], ["nonsense", "words"], ["the", "house"] * 150, []]
    pairs = small(source, target)
    assert [pair.links.shape for pair in pairs] == [(len(t), len(s)) for s, t in zip(source, target, strict=True)]
    assert all(pair.links.isfinite().all() for pair in pairs)
    assert str(pairs[0].alignment) == "0-0 1-1"
    assert not pairs[1].probabilities
    assert pairs[1].target_null.tolist() == pairs[2].source_null.tolist() == [1]
    torch.testing.assert_close(small(source[:1], target[:1])[0].links, pairs[0].links)


def test_a_document_is_aligned_as_its_sentences_are():
    """Equal words of other sentences are no rivals; a passage that was moved to the other end is found."""
    text = toy_translation(train=600, val=1, test=30)
    parts = text["train"], text["test"]
    train, test = ([[line.split() for line in side] for side in (part.source, part.target)] for part in parts)
    aligner = Aligner.fit(*train, parts=1)
    single = aligner(*test)
    source, target = ([word for line in side for word in line] for side in test)
    links, places = set(), (0, 0)
    for pair in single:
        links |= {(s + places[0], t + places[1]) for s, t in pair.alignment.links}
        places = places[0] + len(pair.source), places[1] + len(pair.target)
    found = aligner([source], [target])[0].alignment.links
    assert len(found & links) > 0.9 * max(len(found), len(links))
    moved = aligner([source], [[*target[-60:], *target[:-60]]])[0].alignment.links
    turned = {(s, (t + 60) % len(target)) for s, t in links}
    assert len(moved & turned) > 0.5 * len(turned)


def test_what_the_user_knows(small):
    """A dictionary, anchors and similarities decide where the text does not."""
    source, target = [["rot", "blau"]] * 3, [["blue", "red"]] * 3
    assert str(Aligner.fit(source, target)(source[:1], target[:1])[0].alignment) == "0-0 1-1"  # by their places
    known = {("rot", "red"): 10.0, ("blau", "blue"): 10.0}
    assert str(Aligner.fit(source, target, known=known)(source[:1], target[:1])[0].alignment) == "0-1 1-0"
    line = [["das", "quatsch", "haus"]], [["the", "house", "nonsense"]]
    assert small(*line, anchors=[[(1, 2)]])[0].probabilities[1, 2] == 1
    similarity = torch.zeros(3, 3)
    similarity[2, 1] = 20.0
    assert small(*line, similarity=[similarity])[0].probabilities[1, 2] > 0.9


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("parts", [1, 3])
def test_known_links_of_every_shape_are_written(shape, parts):
    """Words with one or several known links, anywhere, also against all that the text says: with probability 1."""
    order = torch.Generator().manual_seed(0)
    source = [["das", "alte", "haus", "ein", "buch"]] * 6
    target = [["the", "old", "house", "a", "book", "too"]] * 6
    aligner = Aligner.fit(GERMAN, ENGLISH, parts=parts)
    anchors = []
    for s, t in zip(source, target, strict=True):
        first, second = torch.randperm(len(s), generator=order), torch.randperm(len(t), generator=order)
        anchors.append([(i, j) for i in first[: shape[0]].tolist() for j in second[: shape[1]].tolist()])
    for pair, links in zip(aligner(source, target, anchors=anchors, directions=True), anchors, strict=True):
        assert {link: pair.probabilities.get(link) for link in links} == dict.fromkeys(links, 1.0)
        for s, t in links:
            assert pair.source_null[s] == pair.target_null[t] == 0
            assert pair.certainty[t] == pair.forward[t, s] == pair.backward[t, s] == 1
        assert ((pair.links >= 0) & (pair.links <= 1)).all()


def test_composed_and_decomposed_letters_are_the_same_word(small):
    """As the text is written does not matter; the words come back as they were given."""
    source = [["die", "ta\u0308ler"], ["scho\u0308ne", "ta\u0308ler"], ["die", "schönen"]] * 4
    target = [["the", "valleys"], ["beautiful", "valleys"], ["the", "beautiful"]] * 4
    composed = [[unicodedata.normalize("NFC", word) for word in line] for line in source]
    aligner = Aligner.fit(source, target)
    for one, two in zip(aligner(source, target), aligner(composed, target), strict=True):
        assert torch.equal(one.links, two.links)
    assert [pair.source for pair in aligner(source, target)] == source
    known = Aligner.fit(source, target, known={("täler", "valleys"): 5.0})
    again = Aligner.fit(composed, target, known={("ta\u0308ler", "valleys"): 5.0})
    assert torch.equal(known(source, target)[0].links, again(source, target)[0].links)


def test_members_are_averaged_and_each_lacks_a_part():
    source, target = GERMAN * 3, ENGLISH * 3
    aligner = Aligner.fit(source, target, parts=3)
    pairs = aligner(source, target, strings=False, directions=True)
    ensemble = aligner.ensemble
    members = [Aligner(Ensemble(ensemble.vocabularies, ensemble.pairs, [member])) for member in ensemble.members]
    assert len(members) == 3
    for place in range(5):
        forward = torch.stack([one(source, target, strings=False, directions=True)[place].forward for one in members])
        torch.testing.assert_close(pairs[place].forward, forward.mean(0))


def test_a_member_knows_nothing_of_the_part_that_it_lacks():
    """A word that only the pairs of one part have: the member without them has its prior, the other its translation."""
    source = [["das", "quatsch"] if place % 2 else line for place, line in enumerate(GERMAN * 3)]
    target = [["the", "nonsense"] if place % 2 else line for place, line in enumerate(ENGLISH * 3)]
    text = TrainingText.of(source, target, {}, 2)
    backoff = Backoff(text.vocabularies, text.pairs, PRIOR_WEIGHT)
    models = train(text, backoff, agree=False, stop=Event())
    words = [text.vocabularies[side].words[word] for side, word in enumerate(("quatsch", "nonsense"))]
    pair = int(((text.pairs.source == words[0]) & (text.pairs.target == words[1])).nonzero())
    without, within = models[1][0].translation[pair], models[0][0].translation[pair]  # part 0 has the even places
    assert within > 0.9
    assert without < 0.5 * within


@pytest.mark.parametrize(("pairs", "parts"), [(20, 1), (49, 1), (50, 2), (1_000_000, 2)])
def test_how_many_parts_a_text_has(pairs, parts):
    assert part_count(pairs) == parts


def test_a_pair_tells_whether_it_is_a_translation():
    """The gain of evidence over the words alone is lower where translations are shuffled."""
    text = toy_translation(train=300, val=1, test=1)["train"]
    source, target = ([line.split() for line in side] for side in (text.source, text.target))
    aligner = Aligner.fit(source, target, parts=1)
    right = torch.tensor([pair.log_gain for pair in aligner(source, target)])
    wrong = torch.tensor([pair.log_gain for pair in aligner(source, target[1:] + target[:1])])
    assert (right[:, None] > wrong).float().mean() > 0.97
    assert all(isnan(pair.log_evidence) for pair in aligner([[], ["das"]], [["the"], []]))


@pytest.mark.parametrize("copies", [1, 6])  # from 50 pairs on the models of an aligner each lack a part of its text
def test_cross_fitting_aligns_each_part_by_an_aligner_of_the_others(copies):
    source, target = GERMAN * copies, ENGLISH * copies
    found = cross_fit(source, target, parts=2)
    held_out = Aligner.fit(source[1::2], target[1::2])(source[::2], target[::2])
    assert all(torch.equal(pair.links, one.links) for pair, one in zip(found[::2], held_out, strict=True))
    assert [pair.source for pair in found] == source


@pytest.mark.parametrize(
    ("source", "target", "options", "error", "message"),
    [
        (GERMAN[1:], ENGLISH, {}, ValueError, "19 sentences and target 20"),
        (["das haus"], ["the house"], {}, TypeError, r"line\.split\(\)"),
        ("das haus", "the house", {}, TypeError, "source has the text 'das haus'"),
        ([[], ["haus"]], [["the"], []], {}, ValueError, "no pair with words on both sides"),
        ([["a"], ["das"] * 10_000], [["a"], ["the"] * 10_000], {}, ValueError, "pair 1 has 10000 source and 10000"),
        (GERMAN, ENGLISH, {"known": {("das", "the"): -1.0}}, ValueError, "-1.0 times"),
        (GERMAN, ENGLISH, {"known": {("das", "the"): inf}}, ValueError, "inf times"),
        (GERMAN, ENGLISH, {"parts": 0}, ValueError, "parts is 0"),
    ],
)
def test_bad_text(source, target, options, error, message):
    with pytest.raises(error, match=message):
        Aligner.fit(source, target, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchors": [[(2, 0)]]}, "link 2-0"),
        ({"anchors": []}, "for 0 pairs, expected an entry for each of 1"),
        ({"anchors": [[(0, -1)]]}, "link 0--1"),
        ({"similarity": [torch.zeros(3, 2)]}, r"shape \(3, 2\)"),
        ({"similarity": [torch.full((2, 2), torch.nan)]}, "similarity of pair 0 has NaN, expected log potentials"),
    ],
)
def test_bad_hints(small, options, message):
    with pytest.raises(ValueError, match=message):
        small([["das", "haus"]], [["the", "house"]], **options)


def test_written_links_are_those_of_minimum_bayes_risk():
    """The quicker way that writes links chooses what the analysis does, of any table and balance."""
    generator = torch.Generator().manual_seed(0)
    for number in range(300):
        shape = torch.randint(1, 12, (2,), generator=generator).tolist()
        links = torch.rand(shape, generator=generator) ** (1 + number % 30)
        if number % 7 == 0:
            links = (links > 0.6).float()
        if number % 5 == 0:
            links = links.round(decimals=1)
        words = [[""] * size for size in shape[::-1]]
        nulls = [torch.zeros(size) for size in shape[::-1]]
        pair = AlignedPair(*words, links, *nulls, nulls[1])
        for balance in (0.3, 1.0, 4.0):
            assert set(pair_links(pair, balance=balance)) == pair.linked(balance).links


def test_numpy_before_2_gives_the_places_of_unique_keys_flat(small, monkeypatch):
    """`make test-lowest` runs all tests with it; this one says what differs, on any release."""
    expected = [pair.links for pair in small(GERMAN, ENGLISH)]

    def flat(array, *, return_inverse, unique=np.unique):
        keys, inverse = unique(array, return_inverse=return_inverse)
        return keys, inverse.ravel()

    monkeypatch.setattr(np, "unique", flat)
    assert all(torch.equal(pair.links, links) for pair, links in zip(small(GERMAN, ENGLISH), expected, strict=True))
