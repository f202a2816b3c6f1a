"""Objectives as modules: parameters that a step does not use, in one process and under DistributedDataParallel."""

import pytest
import torch
from pyro.infer.elbo import ELBOModule
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from pyro_attention import AlignmentELBO, AttentionELBO, AttentionGuide, Soft, Weibull
from pyro_attention.schedules import Linear
from tests.families.test_alignment import Amortised, Categorical, Marginal, Network, Toy, make_problem
from tests.toy_models import SelfAttention, Sequences


def unused_prior(family, **options):
    data = Sequences.random()
    model = SelfAttention()
    return AttentionELBO(**options), model, AttentionGuide(model, family), (data.x, data.y), "prior.network"


def unused_network():
    model, family = Toy(), Amortised(Network(), Categorical(), warm_start=True)
    return AlignmentELBO(max_plate_nesting=2), model, AttentionGuide(model, family), make_problem(), "network"


CASES = {
    "kl_weight_0": lambda: unused_prior(Weibull(learnable=True), kl_weight=0),
    "warm_up": lambda: unused_prior(Weibull(), kl_weight=Linear(warmup=2)),
    "soft": lambda: unused_prior(Soft()),
    "warm_start": unused_network,
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def one_rank(tmp_path):
    init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    destroy_process_group()


def unused(loss, part):
    found = [parameter for name, parameter in loss.named_parameters() if part in name]
    assert found
    return found


@every_case
def test_unused_parameters_have_no_gradient_in_one_process(case):
    """So that no optimiser moves them, not even by weight decay."""
    elbo, model, guide, arguments, part = CASES[case]()
    loss = elbo(model, guide)
    loss(*arguments).backward()
    gradients = {name: parameter.grad for name, parameter in loss.named_parameters()}
    assert all(parameter.grad is None for parameter in unused(loss, part))
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())


@pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides")
@every_case
@pytest.mark.usefixtures("one_rank")
def test_distributed_data_parallel_needs_no_option(case):
    """It raised "Expected to have finished reduction" at the second step."""
    elbo, model, guide, arguments, part = CASES[case]()
    loss = elbo(model, guide)
    module = DistributedDataParallel(loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for step in range(3):
        elbo.step = step
        optimizer.zero_grad()
        module(*arguments).backward()
        if step == 0:
            assert all((parameter.grad == 0).all() for parameter in unused(loss, part))
        optimizer.step()
    if case == "warm_up":
        assert all(parameter.grad.abs().max() > 0 for parameter in unused(loss, part))


def test_the_gradient_of_the_others_is_untouched():
    elbo, model, guide, arguments, _ = CASES["warm_up"]()
    loss = elbo(model, guide)
    elbo.step = 1
    parameters = list(loss.parameters())
    found = []
    for evaluate in (loss, lambda *args: elbo.differentiable_loss(model, guide, *args)):
        torch.manual_seed(0)
        value = evaluate(*arguments)
        found.append((value, torch.autograd.grad(value, parameters, allow_unused=True)))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
def test_nothing_to_train_stays_so():
    elbo, model, guide, arguments, _ = CASES["soft"]()
    model.requires_grad_(False)
    assert not elbo(model, guide)(*arguments).requires_grad


def test_stock_pyros_module_does_not_reach_them(one_rank):
    """What the tests above would be without the library's own module."""
    elbo, model, guide, arguments, _ = CASES["soft"]()
    module = DistributedDataParallel(ELBOModule(model, guide, elbo))
    module(*arguments).backward()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        module(*arguments)


def test_marginal_likelihood_is_a_module():
    model = Toy()
    loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
    loss(*make_problem()).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in loss.parameters())
