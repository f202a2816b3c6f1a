import pytest

from experiments.benchmarks import normalizers
from pyro_attention import DoublyNormalized, Softmax, Weibull
from pyro_attention.normalizers import Normalizer


def test_ratios_are_to_softmax_of_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalizers, "LENGTHS", (2, 3))
    timings = normalizers.run(rounds=1)
    assert len(timings) == 2 * 2 * 3
    assert all(timing.ratio == 1 for name, timing in timings.items() if name.endswith("softmax"))
    assert "Weibull, n = 3, doubly normalised" in timings


@pytest.mark.parametrize(
    "normalizer", [Softmax(), DoublyNormalized()], ids=lambda normalizer: type(normalizer).__name__
)
def test_steps_train(normalizer: Normalizer) -> None:
    step = normalizers.make_step(normalizer, Weibull(), 5)
    losses = [step().item() for _ in range(30)]
    assert losses[-1] < losses[0]
