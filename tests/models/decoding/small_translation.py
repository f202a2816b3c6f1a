"""A translation model of four words, and its probabilities one sentence, one word and one alignment at a time."""

from functools import partial

import pytest
import torch
from torch import nn

from models.nmt import Translation, TranslationSizes
from pyro_attention import ContextualGammaPrior

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


def scores_of(found):
    return [(one.tokens, one.score) for hypotheses in found for one in hypotheses]


def approx(pairs):
    return [(tokens, pytest.approx(score, rel=1e-9)) for tokens, score in pairs]
