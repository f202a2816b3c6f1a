"""Many posterior samples in one pass, by a plate at the left of those of the model.

What is ahead of the first attention site is computed once for all samples of a pass. The model must broadcast over the
plate, as for vectorised particles; two more passes check this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyro
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention.guide import DRAWS, is_attention_site
from pyro_attention.posterior.sampling import SAMPLERS, AtMean, Pass, Run, depth

__all__ = ["draw_chunks", "outputs"]


@SAMPLERS.register("chunks")
def draw_chunks(run: Run, num_samples: int, chunk_size: int) -> Iterator[Pass]:
    """Passes of as many samples as asked for, the first of one; ValueError where a model does not broadcast."""
    first = Pass(*run())
    nesting = max((depth(site) for site in first.trace.nodes.values() if site["type"] == "sample"), default=0)
    yield first
    if num_samples > 1:
        _check_broadcasts(run, first, nesting)
    del first  # the next pass needs the memory
    for start in range(1, num_samples, chunk_size):
        count = min(chunk_size, num_samples - start)
        yield Pass(*run(pyro.plate(DRAWS, count, dim=-1 - nesting)), nesting, count)


def outputs(drawn: Pass) -> Tensor:
    """The model's return value in a pass, which must be a tensor, with a leading sample dimension."""
    if not isinstance(drawn.output, Tensor):
        raise TypeError(
            f"the model returned {type(drawn.output).__name__}, expected a tensor such as logits; return it from the "
            f"model, or make the guide of a function that picks it: AttentionGuide(lambda x: model(x)[0], ...)"
        )
    output = drawn.output.unsqueeze(0) if drawn.nesting is None else drawn.output
    if output.shape[:1] != (drawn.size,):
        raise ValueError(
            f"the model returned shape {tuple(output.shape)} for {drawn.size} samples in one pass, expected a leading "
            f"dimension of {drawn.size}; use chunk_size=1 unless the model broadcasts over it"
        )
    return output


class _AtValues(AtMean):
    """Sets other sites than those of attention, too: to given values."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


def _check_broadcasts(run: Run, first: Pass, nesting: int) -> None:
    """Raise unless two samples of a pass are what one alone is: attention at its mean, the rest as in the first."""
    latent = [first.trace.nodes[name] for name in first.trace.stochastic_nodes]
    rest = [site for site in latent if not is_attention_site(site) and not site_is_subsample(site)]
    one = {site["name"]: site["value"] for site in rest}
    two = {site["name"]: site["value"].expand(2, *[1] * (nesting - depth(site)), *site["value"].shape) for site in rest}
    alone = Pass(*run(_AtValues(one)))
    try:
        pair = Pass(*run(_AtValues(two), pyro.plate(DRAWS, 2, dim=-1 - nesting)), nesting, 2)
        found, wanted = (dict(each.weights()) for each in (pair, alone))
        if isinstance(alone.output, Tensor):
            found["output"], wanted["output"] = outputs(pair), outputs(alone)
        for name, expected in wanted.items():
            atol = 0.01 * expected.nan_to_num(0, 0, 0).abs().max().item()  # as close as results in half precision are
            same = found[name].shape[1:] == expected.shape[1:]
            if not (same and found[name].isclose(expected, rtol=0, atol=atol, equal_nan=True).all()):
                raise ValueError(f"{name} is another one where two samples are in one pass than where one is")
    except Exception as error:
        error.add_note(
            "The model does not broadcast over a dimension of samples at the left: use chunk_size=1, or let the model "
            "count dimensions from the right, as in mean(-2) for mean(1), and draw no noise of its own."
        )
        raise
