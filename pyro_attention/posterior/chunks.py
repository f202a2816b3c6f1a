"""Many posterior samples in one pass, by a plate at the left of those of the model.

What is ahead of the first attention site is computed once for all samples of a pass. The model must broadcast over the
plate, as for vectorised particles; two more passes check this.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_attention.guide import DRAWS, is_attention_site
from pyro_attention.objectives.elbo import is_point_mass
from pyro_attention.objectives.evidence import Draws
from pyro_attention.posterior.sampling import SAMPLERS, AtMean, Pass, Run, depth

__all__ = ["draw_chunks", "outputs"]


@SAMPLERS.register("chunks")
def draw_chunks(run: Run, num_samples: int, chunk_size: int | None, memory_budget: float | None) -> Iterator[Pass]:
    """Passes of as many samples as asked for, or as fit in memory, by what the first pass, of one sample, takes.

    Raises:
        ValueError: A budget that is not positive, or below one sample; a model that does not broadcast.
    """
    if memory_budget is not None and not memory_budget > 0:
        raise ValueError(f"memory_budget is {memory_budget}, expected a positive number of bytes, as 1e9")
    size = _SampleSize()
    measure: list[Any] = [] if memory_budget is None else [size, size.tensors]
    first = Pass(*run(*measure))
    if memory_budget is not None:
        sample_bytes = size.with_copies_of(first.output) if run.whole else size.at_last_site
        if sample_bytes > memory_budget:
            raise ValueError(
                f"memory_budget is {memory_budget:.3g} bytes, expected at least {sample_bytes}, about what one sample "
                f"takes; raise it, give the model a smaller batch, or omit it for one sample a pass"
            )
        chunk_size = int(min(memory_budget / max(1, sample_bytes), chunk_size or num_samples))
    chunk_size = chunk_size or 1
    drawn = any(is_attention_site(site) and not is_point_mass(site["fn"]) for site in first.trace.nodes.values())
    plate = Draws if drawn else pyro.plate  # what nothing is drawn for is repeated, as its samples would not show
    nesting = max((depth(site) for site in first.trace.nodes.values() if site["type"] == "sample"), default=0)
    yield first
    if chunk_size > 1 and num_samples > 1:
        _check_broadcasts(run, first, nesting, plate)
    del first  # the next pass needs the memory
    for start in range(1, num_samples, chunk_size):
        if chunk_size == 1:
            yield Pass(*run())
        else:
            count = min(chunk_size, num_samples - start)
            yield Pass(*run(plate(DRAWS, count, dim=-1 - nesting)), nesting, count)


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


def _check_broadcasts(run: Run, first: Pass, nesting: int, plate: type[pyro.plate]) -> None:
    """Raise unless each of two samples in a pass is what one alone is: attention at its mean, the rest as in the first.

    The output is compared, or the weights of the sites that come last.
    """
    names = first.trace.stochastic_nodes
    if run.sites:  # it ends there
        names = names[: names.index(run.sites[-1]) + 1]
    latent = [site for site in map(first.trace.nodes.get, names) if not site_is_subsample(site)]
    if run.sites and all(is_point_mass(site["fn"]) for site in latent[:-1]):  # nothing is drawn ahead of the last one
        return
    rest = [site for site in latent if not is_attention_site(site)]
    one = {site["name"]: site["value"] for site in rest}
    two = {site["name"]: site["value"].expand(2, *[1] * (nesting - depth(site)), *site["value"].shape) for site in rest}
    alone = Pass(*run(_AtValues(one)))
    try:
        pair = Pass(*run(_AtValues(two), plate(DRAWS, 2, dim=-1 - nesting)), nesting, 2)
        by_output = not run.sites and isinstance(alone.output, Tensor)
        found, wanted = ({"output": outputs(each)} if by_output else dict(each.weights()) for each in (pair, alone))
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


class _SampleSize(Messenger):
    """Bytes that a pass needs from its first attention site on: what many samples need many times; around a guide."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.at_last_site = _NewTensors(), 0

    def with_copies_of(self, value: Any) -> int:
        """With about three copies of a value, as normalisation takes, or a transform with its statistics."""
        copies = 3 * value.nbytes if isinstance(value, Tensor) else 0
        return max(self.tensors.most, self.tensors.now + copies)

    def _pyro_sample(self, msg: Any) -> None:
        self.tensors.counting |= is_attention_site(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_attention_site(msg):
            self.at_last_site = self.with_copies_of(msg["value"])


class _NewTensors(TorchDispatchMode):
    """Bytes of the tensors that operations make while ``counting``: there now, and the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.counting, self.now, self.most = False, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.counting:
            seen = {storage._cdata for storage in _storages((args, kwargs))}
            for storage in _storages(output):
                # a view, or an operation in place, makes nothing new
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes())
        return output

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def _storages(tree: Any) -> list[Any]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided)
    # a subclass that answers every operation itself need not have a storage
    return [leaf.untyped_storage() for leaf in leaves if type(leaf).__torch_dispatch__ is Tensor.__torch_dispatch__]
