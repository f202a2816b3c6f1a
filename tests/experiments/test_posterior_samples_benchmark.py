import torch

from experiments.benchmarks.posterior_samples import SAMPLES, Sizes, make_guides, run
from pyro_attention import sample_posterior


def test_end_to_end() -> None:
    timings = run(rounds=2, sizes=Sizes(batch=2, sources=3, targets=4, width=8, vocabulary=10))
    reference, single, chunked = timings
    assert reference == "deterministic pass"
    assert timings[reference].ratio == 1
    assert chunked == f"{SAMPLES} samples, chunked"
    # 32 passes against two of them, so this holds on any machine
    assert timings[chunked].ratio < timings[single].ratio / 2


def test_both_guides_are_over_one_model() -> None:
    soft, weibull, arguments = make_guides(Sizes(batch=2, sources=3, targets=4, width=8, vocabulary=10))
    assert soft.model is weibull.model
    samples = sample_posterior(weibull, *arguments, num_samples=400, chunk_size=400)["alignment"]
    certain = sample_posterior(soft, *arguments, num_samples=1)["alignment"]
    assert samples.shape == (400, 2, 4, 1, 3)
    torch.testing.assert_close(samples.mean(0), certain[0], atol=0.02, rtol=0)
