"""NULL, the source word of words that translate none: by sums over all alignments, in every scheme, in searches."""

import math
from itertools import product

import pytest
import torch
from torch import nn

from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.decoding import Inference, beam_search
from models.decoding.next_word import target_alignments, target_log_probs
from models.diagonal import DiagonalBias
from models.nmt import Translation, TranslationSizes
from models.null_word import PROBABILITY, NullWord
from models.temporal import TemporalNormalizer
from pyro_attention import AlignmentELBO, Amortised, AttentionGuide, Categorical, Marginal

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4, layers=1)
ALIGNER = {"input_feed": "none", "words_from": "context", "encoder": "words"}


def make(*, diagonal=True, prior=None, **options):
    torch.manual_seed(0)
    bias = DiagonalBias(3.0) if diagonal else None
    model = Translation(6, 5, sizes=SIZES, dropout=0.0, null_word=True, diagonal=bias, prior=prior, **options).double()
    for name, parameter in model.named_parameters():
        if not name.startswith("diagonal"):
            nn.init.normal_(parameter)
    return model


def batch(words=3):
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(6, (2, 3), generator=generator)
    target = torch.randint(2, 5, (2, words), generator=generator)
    source_mask = torch.arange(3) < torch.tensor([3, 2])[:, None]
    target_mask = torch.arange(words) < torch.tensor([words, words - 1])[:, None]
    return source, source_mask, torch.cat([torch.zeros(2, 1).long(), target[:, :-1]], 1), target, target_mask


# the score


def test_closed_form():
    scores, mask = torch.tensor([[9.0, 1.0, 0.5, 7.0]]).double(), torch.tensor([[True, True, True, False]])
    probabilities = NullWord(2, 0.3)(scores, mask).masked_fill(~mask, -math.inf).softmax(-1)
    words = torch.tensor([1.0, 0.5]).double().softmax(-1)
    torch.testing.assert_close(probabilities, torch.tensor([[0.3, 0.7 * words[0], 0.7 * words[1], 0.0]]).double())
    assert NullWord(2)(scores, mask) is scores


@pytest.mark.parametrize("probability", [0.0, 1.0, math.nan])
def test_bad_probability(probability):
    with pytest.raises(ValueError, match=f"probability is {probability}, expected a number between 0 and 1"):
        NullWord(2, probability)


@pytest.mark.parametrize("normalizer", [None, TemporalNormalizer()])
def test_its_prior_probability_under_a_diagonal(normalizer):
    """Content, place and the words before have no say."""
    model, (source, mask, words, *_) = make(normalizer=normalizer), batch()
    for step in model.steps(model.start(model.encode(source, mask), mask), words):
        prior = step.scores.masked_fill(~step.state.mask, -math.inf).softmax(-1)
        assert prior[:, 0].tolist() == pytest.approx([PROBABILITY] * 2)


def test_words_among_themselves_are_as_without_it():
    model, (source, mask, words, *_) = make(**ALIGNER), batch()
    plain = Translation(6, 5, sizes=SIZES, dropout=0.0, diagonal=DiagonalBias(3.0), **ALIGNER).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    found = [[step.scores for step in one.steps(one.start(one.encode(source, mask), mask), words)]
             for one in (model, plain)]  # fmt: skip
    for with_null, without in zip(*found, strict=True):
        torch.testing.assert_close(with_null[:, 1:], without)


def test_without_scores_of_content_it_is_model_2_with_the_prior_of_fast_align():
    """Its posterior by the formulas of that model, with a table p(target word | source word) or, of NULL, alone."""
    model, (source, mask, words, target, _) = make(**ALIGNER).eval(), batch()
    nn.init.zeros_(model.score.out.weight)
    posterior = target_alignments(model, model.start(model.encode(source, mask), mask), words, target)
    with torch.no_grad():
        vectors = torch.cat([model.null_word.vector[None], model.encoder(model.source_embedding.weight)])
        table = model.output(model.from_context(vectors).tanh()).softmax(-1).tolist()  # NULL first
    for row, count in enumerate((3, 2)):
        for j in range(3):
            places = [abs((i + 0.5) / count - min((j + 0.5) / count, 1.0)) for i in range(count)]
            near = [math.exp(-3.0 * place) for place in places]
            prior = [PROBABILITY, *((1 - PROBABILITY) * value / sum(near) for value in near)]
            keys, word = [0, *(source[row, :count] + 1).tolist()], int(target[row, j])
            joint = [p * table[key][word] for p, key in zip(prior, keys, strict=True)]
            expected = [value / sum(joint) for value in joint]
            assert posterior[row, j, : count + 1].tolist() == pytest.approx(expected, rel=1e-6)


# sums over all alignments


def by_hand(model, arguments):
    """Log prior and log likelihood ``[M, 1 + N]`` of each sentence, by itself, without padding."""
    source, source_mask, words, target, target_mask = arguments
    found = []
    with torch.no_grad():
        for row in range(len(source)):
            size, length = int(source_mask[row].sum()), int(target_mask[row].sum())
            one, real = source[row : row + 1, :size], torch.ones(1, size, dtype=torch.bool)
            memory = model.encode(one, real)
            contexts = torch.cat([model.null_word.vector.expand(1, 1, -1), memory], 1)
            steps = model.steps(model.start(memory, real), words[row : row + 1, :length])
            parts = []
            for place, step in enumerate(steps):
                log_f = model.likelihood(step.queries.unsqueeze(1), contexts).logits[0, :, target[row, place]]
                parts.append((step.scores[0].log_softmax(-1), log_f))
            found.append(tuple(torch.stack(part) for part in zip(*parts, strict=True)))
    return found


CASES = {
    "aligner": ALIGNER,
    "no diagonal": {"diagonal": False, **ALIGNER},
    "translator": {"input_feed": "expected"},
    "temporal": {"normalizer": TemporalNormalizer(), "input_feed": "expected"},
}


@pytest.mark.parametrize("case", CASES)
def test_evidence_and_posterior_by_enumeration(case):
    model, arguments = make(**CASES[case]).eval(), batch()
    evidence, posteriors = 0.0, []
    for log_prior, log_f in by_hand(model, arguments):
        joint = {}
        for keys in product(range(log_prior.size(1)), repeat=len(log_prior)):
            places = torch.arange(len(keys)), torch.tensor(keys)
            joint[keys] = (log_prior[places] + log_f[places]).sum().exp().item()
        total = sum(joint.values())
        evidence += math.log(total)
        posteriors.append([
            [sum(value for keys, value in joint.items() if keys[j] == key) / total for key in range(log_prior.size(1))]
            for j in range(len(log_prior))
        ])  # fmt: skip
    found = AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)
    assert -found == pytest.approx(evidence, rel=1e-9)
    assert target_log_probs(model, *arguments).sum().item() == pytest.approx(evidence, rel=1e-9)
    source, mask, words, target, _ = arguments
    rows = target_alignments(model, model.start(model.encode(source, mask), mask), words, target)
    for row, expected in zip(rows, posteriors, strict=True):
        own = row[: len(expected), : len(expected[0])]
        torch.testing.assert_close(own, torch.tensor(expected, dtype=torch.float64))


def test_elbo_of_an_inference_network_by_enumeration():
    model, arguments = make(**ALIGNER).eval(), batch()
    network = AlignmentNetwork(
        model.source_embedding, model.target_embedding, hidden=4, layers=1, dropout=0.0, null_word=True
    ).double()
    nn.init.normal_(network.null)
    guide = AttentionGuide(model, Amortised(network, Categorical()))
    found = -AlignmentELBO(max_plate_nesting=2).loss(model, guide, *arguments)
    scores, expected = network(*arguments).squeeze(2), 0.0
    for row, (log_prior, log_f) in enumerate(by_hand(model, arguments)):
        log_q = scores[row, : len(log_prior), : log_prior.size(1)].log_softmax(-1)
        expected += (log_q.exp() * (log_f + log_prior - log_q)).sum().item()
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    ["soft", "marginal", "sparse_marginal", "hard_enum", "hard_sample", "categorical_enum", "sparse_enum",
     "categorical_sample", "gumbel", "wake_sleep", "iwae", "dirichlet", "weibull", "lognormal"],
)  # fmt: skip
def test_every_scheme_trains_it(name):
    scheme = build_scheme(name)
    model = make(prior=scheme.prior(SIZES.memory, 1), **ALIGNER)
    network = AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=4, layers=1, null_word=True)
    guide = scheme.guide(model, network.double() if scheme.amortised else None)
    scheme.elbo(model, guide)(*batch(words=100)).backward()  # so many that it is drawn where it is drawn
    assert model.null_word.vector.grad.isfinite().all()
    assert model.null_word.vector.grad.abs().sum() > 0


# searches


def test_a_search_scores_as_teacher_forcing_and_gives_words_alone():
    model, (source, mask, *_) = make(**ALIGNER).eval(), batch()
    for row, (best, *_) in enumerate(beam_search(model, source, mask, begin=0, end=1, beam=3, max_length=4)):
        target = torch.tensor([best.tokens])
        size = int(mask[row].sum())
        sides = source[row : row + 1, :size], mask[row : row + 1, :size]
        words = torch.cat([torch.zeros(1, 1, dtype=torch.int64), target[:, :-1]], 1)
        log_probs = target_log_probs(model, *sides, words, target, torch.ones_like(target, dtype=torch.bool))
        assert log_probs.sum().item() == pytest.approx(best.log_prob, rel=1e-9)
        all_of_it = target_alignments(model, model.start(model.encode(*sides), sides[1]), words, target, Inference())
        torch.testing.assert_close(best.alignments, all_of_it[0, :, 1:])
