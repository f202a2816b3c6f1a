"""A step whose ELBO is infinite raises before anything changes, whatever the objective."""

import copy

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    FixedGammaPrior,
    ImportanceELBO,
    Marginal,
    ScoreFunctionELBO,
    Weibull,
)
from pyro_attention.families.alignment import Categorical
from tests.families.test_alignment import Toy, make_problem
from tests.toy_models import FreeScores


def huge_scores(**options):
    model = FreeScores(FixedGammaPrior(), normalize_scores=False)
    nn.init.constant_(model.scores, 89.0)
    guide, y = AttentionGuide(model, Weibull()), torch.zeros(1, 3, 4)
    message = r"the ELBO is -inf \(KL per site: {'attention': inf}; .*the KL of 'attention' overflows.*normalize_scores"
    return AttentionELBO(**options), model, guide, (y,), message


def huge_logits(make_elbo, family, message):
    model, problem = Toy(), make_problem()
    nn.init.constant_(model.out.bias, torch.finfo(torch.float64).max)  # class 0 alone can be
    model.out.bias.data[1:] *= -1
    return make_elbo(), model, AttentionGuide(model, family), problem, message


LIKELIHOOD = "the ELBO is (-inf|nan) .*'label'.*look for"
CASES = {
    "weights": huge_scores,
    "particles": lambda: huge_scores(num_particles=2),
    "vectorized": lambda: huge_scores(num_particles=2, vectorize_particles=True, max_plate_nesting=0),
    "marginal": lambda: huge_logits(lambda: AlignmentELBO(max_plate_nesting=2), Marginal(), LIKELIHOOD),
    "enumerated": lambda: huge_logits(lambda: AlignmentELBO(max_plate_nesting=2), Categorical(), LIKELIHOOD),
    "score_function": lambda: huge_logits(ScoreFunctionELBO, Categorical(enumerate=False), LIKELIHOOD),
    "importance": lambda: huge_logits(
        lambda: ImportanceELBO(2, max_plate_nesting=2), Categorical(enumerate=False), LIKELIHOOD
    ),
}


@pytest.mark.filterwarnings("ignore:Encountered")
@pytest.mark.parametrize("case", CASES)
def test_nothing_changes_when_the_elbo_is_infinite(case):
    elbo, model, guide, arguments, message = CASES[case]()
    before = copy.deepcopy(model.state_dict())
    svi = SVI(model, guide, Adam({"lr": 0.1}), elbo)
    for evaluate in (svi.step, svi.evaluate_loss, elbo(model, guide)):
        with pytest.raises(ValueError, match=message):
            evaluate(*arguments)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(value.isfinite().all() for value in pyro.get_param_store().values())
    assert not hasattr(guide, "trace")
