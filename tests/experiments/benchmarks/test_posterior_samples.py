from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from experiments.benchmarks import posterior_samples
from experiments.benchmarks.enumeration import Sizes
from experiments.benchmarks.posterior_samples import SAMPLES, make_guides, run
from models.nmt import Translation
from pyro_attention import sample_posterior

TINY = Sizes(batch=2, sources=3, targets=4, width=8, vocabulary=10)
CONTESTANTS = ["deterministic pass", f"{SAMPLES} samples, one at a time", f"{SAMPLES} samples, chunked"]


def test_end_to_end() -> None:
    timings = run(rounds=2, sizes=TINY)
    assert list(timings) == CONTESTANTS
    assert timings["deterministic pass"].ratio == 1


def test_chunks_save_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    forward = Translation.forward

    def counted(self: Translation, *arguments: Any, **options: Any) -> Any:
        passes.append(len(passes))
        return forward(self, *arguments, **options)

    def count(contestants: Mapping[str, Callable[[], None]], **_: int) -> dict[str, int]:
        found = {}
        for name, call in contestants.items():
            passes.clear()
            call()
            found[name] = len(passes)
        return found

    monkeypatch.setattr(Translation, "forward", counted)
    monkeypatch.setattr(posterior_samples, "interleave", count)
    found = run(sizes=TINY)
    assert found == dict(zip(CONTESTANTS, [1, SAMPLES, 2], strict=True))


def test_both_guides_are_over_one_model() -> None:
    soft, weibull, arguments = make_guides(TINY)
    assert soft.model is weibull.model
    samples = sample_posterior(weibull, *arguments, num_samples=400, chunk_size=400)["alignment"]
    certain = sample_posterior(soft, *arguments, num_samples=1)["alignment"]
    assert samples.shape == (400, 2, 4, 1, 3)
    torch.testing.assert_close(samples.mean(0), certain[0], atol=0.02, rtol=0)
