from typing import get_args

import pytest
import torch

from experiments.benchmarks.self_attention import LOSSES, Contestant, Sizes, make_step, run

SIZES = Sizes(batch=2, length=3, width=8, heads=2)
# Names of a hand-written layer's parameters in ours.
OURS = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "out": "attention.out_proj",
    "prior": "attention.attention.prior.network",
}


def losses_at_equal_weights(*contestants: Contestant) -> list[torch.Tensor]:
    """Losses of hand-written contestants, and of ours with the weights of the first of them."""
    x, labels = torch.randn(SIZES.batch, SIZES.length, SIZES.width), torch.tensor([0, 1])
    values, reference = [], {}
    for name in contestants:
        torch.manual_seed(0)
        loss = LOSSES[name](SIZES)
        if name.endswith("ours"):
            with torch.no_grad():
                parameters = dict(loss.model.network.named_parameters())
                for key, value in reference.items():
                    parameters[_renamed(key)].copy_(value)
        else:
            reference = reference or dict(loss.network.named_parameters())
        values.append(loss(x, labels).detach())
    return values


def _renamed(key: str) -> str:
    first, *rest = key.split(".")
    if first != "attention":
        return key
    layer, part, *rest = rest
    return ".".join([first, layer, OURS[part], *rest])


def test_every_contestant_is_there() -> None:
    assert tuple(LOSSES) == get_args(Contestant)
    assert list(run(rounds=1, sizes=SIZES)) == list(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_reach_all_parameters(name: Contestant) -> None:
    loss = LOSSES[name](SIZES)
    value = loss(torch.randn(SIZES.batch, SIZES.length, SIZES.width), torch.tensor([0, 1]))
    value.backward()
    assert value.isfinite()
    for key, parameter in loss.named_parameters():
        # without a prior term nothing reads the prior
        if name != "soft, ours" or ".prior." not in key:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", LOSSES)
def test_steps_train(name: Contestant) -> None:
    step = make_step(name, SIZES)
    losses = [step().item() for _ in range(30)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("contestants", "tolerance"),
    [
        (("softmax, hand-written", "scaled_dot_product_attention", "soft, ours"), {}),
        # up to the noise, on which the KL, by far the largest part, hardly depends
        (("naive Bayesian, hand-written", "stock Pyro, two passes", "Weibull, ours"), {"rtol": 2e-2, "atol": 0}),
    ],
    ids=["deterministic", "Bayesian"],
)
def test_contestants_are_equal(contestants: tuple[Contestant, ...], tolerance: dict[str, float]) -> None:
    reference, *others = losses_at_equal_weights(*contestants)
    for other in others:
        torch.testing.assert_close(other, reference, **tolerance)
