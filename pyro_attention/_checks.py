"""Checks of user input, shared by the modules: each error names what was seen, what was expected and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_attention.ops.transforms import whole

__all__ = [
    "PlateCheck",
    "as_float",
    "as_numbers",
    "broadcasts_to",
    "check_boolean_mask",
    "check_constant",
    "check_device",
    "check_edge_index",
    "check_finite",
    "check_kind",
    "check_mask_fits",
    "check_pairs",
    "check_per_key",
    "check_positive",
    "check_repetition",
    "check_scores",
    "kind_of",
    "parameters_elsewhere",
    "unregistered_parameters",
]


def as_float(value: Tensor | float) -> Tensor:
    """Value as a tensor in float32 or float64: noise, softmax and KL are never computed in half precision."""
    tensor = torch.as_tensor(value)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def kind_of(value: Any) -> Any:
    """What a value is, to be shown: the dtype of a tensor, the type of anything else."""
    return value.dtype if isinstance(value, Tensor) else type(value).__name__


def as_numbers(value: Tensor) -> Any:
    """Number of a tensor, or the list of its numbers, rounded to be shown."""
    return value.detach().double().round(decimals=5).tolist()


def check_positive(name: str, value: Tensor | float) -> None:
    """Raise ValueError unless every entry is positive and finite."""
    if torch.compiler.is_exporting():  # tensors have no numbers then
        return
    if isinstance(value, Tensor):
        value = whole(value)
        if value.numel() == 1 and 0 < value.item() < float("inf"):  # in a fraction of the time of the steps below
            return
        good = (value > 0) & value.isfinite()
        if not good.all():
            worst = value[~good].flatten()[0].item()
            raise ValueError(f"{name} has an entry {worst}, expected positive finite numbers")
    elif not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}, expected a positive number, or a tensor where it may be one per head")
    elif not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}, expected a positive finite number")


def check_constant(name: str, value: Tensor | float, remedy: str) -> None:
    """Raise TypeError where a number asks for a gradient, which would not reach it: its logarithm is kept."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise TypeError(f"{name} requires a gradient, which would not reach it, expected a constant; {remedy}")


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Raise TypeError unless a value is of a kind, such as a posterior family."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}, expected a {kind.__name__} such as {example}")


def broadcasts_to(shape: torch.Size, larger: torch.Size) -> bool:
    """Whether a tensor of a shape broadcasts to another shape."""
    try:
        return bool(torch.broadcast_shapes(shape, larger) == larger)
    except RuntimeError:
        return False


def check_finite(
    owner: str, value: Tensor, *, name: str = "entries", remedy: str = "look for NaN in the inputs or the parameters"
) -> None:
    """Raise ValueError unless every entry is a finite number."""
    if torch.compiler.is_exporting():  # tensors have no numbers then
        return
    # one pass; only a sum that is not finite calls for a closer look
    if not value.sum().isfinite() and not value.isfinite().all():
        count = f"{(~value.isfinite()).sum().item()} of {value.numel()}"
        raise ValueError(f"{owner}: {count} {name} are NaN or infinite; {remedy}")


class PlateCheck(Messenger):
    """Innermost handler: after all handlers have spoken, every batch dimension must be a plate's or of enumeration.

    What the plates make of the batch shape is left to :func:`check_repetition`, as a guide knows which are the model's.
    """

    def _pyro_sample(self, msg: Any) -> None:
        msg["infer"]["batch_dims"] = len(msg["fn"].batch_shape)

    def _pyro_post_sample(self, msg: Any) -> None:
        plated = {frame.dim for frame in msg["cond_indep_stack"] if frame.vectorized}
        plated.update(msg["infer"].get("_dim_to_id", ()))
        shape = tuple(msg["fn"].batch_shape)
        missing = [dim for dim in range(-len(shape), 0) if shape[dim] > 1 and dim not in plated]
        if missing:
            raise ValueError(
                f"site '{msg['name']}': batch shape {shape} has no plate at dimension {missing[-1]}; wrap the call, "
                f"for example `with pyro.plate('data', {shape[missing[-1]]}, dim={missing[-1]}):`"
            )


def check_repetition(msg: Any) -> None:
    """Raise ValueError when a plate of the model repeats an attention site, as it does where heads were forgotten."""
    dims = msg["infer"].pop("batch_dims", None)
    for frame in msg["cond_indep_stack"]:
        if dims is not None and frame.vectorized and frame.size > 1 and -frame.dim > dims:
            head_dim = msg["fn"].layout.head_dim
            raise ValueError(
                f"site '{msg['name']}': its scores have no dimension for plate '{frame.name}' of size {frame.size}; if "
                f"that of the heads is missing, add it to scores, values and keys (.unsqueeze({head_dim})); if all of "
                f"the plate share their scores, give these a dimension of size 1 at the left (.unsqueeze(0))"
            )


def check_scores(scores: Tensor, *, site: str, name: str = "scores") -> None:
    """Raise unless attention scores are finite floating-point numbers of a forward pass."""
    if not scores.is_floating_point():
        raise TypeError(f"site '{site}': {name} have dtype {scores.dtype}, expected floating point")
    if torch.compiler.is_exporting():  # a backward pass cannot be asked for then
        return
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            f"site '{site}' is recomputed during backward, where no guide is active; checkpoint only the deterministic "
            f"parts around LatentAttention"
        )
    if torch.distributions.Distribution._validate_args:
        remedy = "check the features and the learning rate, and forbid positions by a mask instead of -inf scores"
        check_finite(f"site '{site}'", whole(scores), name=name, remedy=remedy)


def check_per_key(name: str, tensor: Tensor | None, scores: Tensor, layout: Any, *, site: str) -> None:
    """Raise unless values or keys hold one vector per head and key, in floating point, on the scores' device."""
    if tensor is None:
        return
    if not tensor.is_floating_point():
        raise TypeError(f"site '{site}': {name} have dtype {tensor.dtype}, expected floating point")
    check_device(name, tensor.device, scores, site=site)
    heads, keys = scores.size(layout.head_dim), layout.num_keys(scores)
    if tensor.dim() < 3 or layout.heads_first(tensor).shape[-3:-1] not in ((heads, keys), (1, keys)):
        raise ValueError(
            f"site '{site}': {name} have shape {tuple(tensor.shape)}, expected {keys} keys of {heads} heads: "
            f"[..., heads, keys, width] dense, [..., nodes, heads, width] on a graph"
        )


def check_boolean_mask(mask: Tensor | None) -> None:
    """Raise TypeError unless the mask is boolean."""
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(
            f"mask has dtype {mask.dtype}, expected torch.bool with True = may attend; convert an additive mask by "
            f"mask > -1e4, an integer one by mask.bool()"
        )


def check_device(name: str, device: torch.device, scores: Tensor, *, site: str) -> None:
    """Raise ValueError unless something is on the device of the scores."""
    if device != scores.device:
        raise ValueError(
            f"site '{site}': {name} are on {device}, scores on {scores.device}; move them by .to('{scores.device}')"
        )


def check_mask_fits(mask: Tensor | None, scores: Tensor, *, site: str) -> None:
    """Raise ValueError unless the mask broadcasts to the scores, on their device."""
    if mask is None:
        return
    check_device("masks", mask.device, scores, site=site)
    if not broadcasts_to(mask.shape, scores.shape):
        shapes = f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        raise ValueError(f"site '{site}': {shapes}; expected [..., heads or 1, queries or 1, keys] if dense")


def check_pairs(
    queries: Tensor, keys: Tensor, values: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, *, site: str
) -> None:
    """Raise unless queries, keys, values and masks of blocked attention are finite and fit each other."""
    for name, vectors in (("queries", queries), ("keys", keys), ("values", values)):
        check_scores(vectors, site=site, name=name)
        if vectors.dim() < 3 or (name != "queries" and vectors.shape[-3:-1] != keys.shape[-3:-1]):
            raise ValueError(
                f"site '{site}': {name} have shape {tuple(vectors.shape)}, expected [..., heads, positions, width], "
                f"keys and values with the same heads and positions"
            )
    if queries.size(-3) != keys.size(-3) or queries.size(-1) != keys.size(-1):
        shapes = f"queries of shape {tuple(queries.shape)} do not fit keys of shape {tuple(keys.shape)}"
        raise ValueError(f"site '{site}': {shapes}; expected as many heads and the same width")
    for name, mask, vectors in (("key_mask", key_mask, keys), ("query_mask", query_mask, queries)):
        check_boolean_mask(mask)
        expected = (*vectors.shape[:-3], vectors.size(-2))
        if mask is not None and mask.shape != expected[-mask.dim() :]:
            raise ValueError(f"site '{site}': {name} has shape {tuple(mask.shape)}, expected {expected}")


def check_edge_index(edge_index: Tensor, *, num_sources: int, num_targets: int) -> None:
    """Raise TypeError or ValueError unless ``edge_index`` is int64 or int32 ``[2, E]`` with indices in range."""
    if edge_index.layout != torch.strided:
        raise ValueError(
            f"edge_index is a sparse matrix ({edge_index.layout}), expected the indices [2, edges]; of PyG's adj_t, "
            f"with a row for each target, these are adj_t.to_sparse_coo().coalesce().indices().flip(0)"
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, expected [2, edges]")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index has dtype {edge_index.dtype}, expected torch.int64; convert it with .long()")
    if torch.compiler.is_exporting() or edge_index.size(1) == 0:  # there are no numbers to look at
        return
    if whole(edge_index) is not edge_index:
        raise ValueError("edge_index is mapped over by torch.func.vmap, expected the same edges for every entry")
    for row, (name, size) in enumerate((("source", num_sources), ("target", num_targets))):
        low, high = edge_index[row].min().item(), edge_index[row].max().item()
        if low < 0 or high >= size:
            seen = f"edge_index names {name} nodes {low} to {high}, expected 0 to {size - 1}"
            raise ValueError(f"{seen}; check num_nodes or renumber the nodes")


def unregistered_parameters(loss: Tensor, trace: Trace) -> str | None:
    """What is wrong when a loss depends on parameters that are no param sites of its trace; None when nothing is."""
    leaves = _leaves(loss)
    missing = _missing(leaves, _param_sites(trace))
    if not missing:
        return None
    return (
        f"{_count(missing, leaves)} need gradients but are no param sites, so SVI would not train them; make the model "
        f"a PyroModule or call pyro.module('net', net) inside it, call pyro.clear_param_store() first where another "
        f"model or guide was trained in this process (their names clash), or train AttentionELBO()(model, guide) with "
        f"a torch optimiser"
    )


def parameters_elsewhere(loss: Tensor, *parts: Any, trace: Trace | None = None) -> str | None:
    """What is wrong when a loss depends on parameters of other modules than its parts; None when nothing is.

    Param sites of a trace are not missed: SVI trains them.
    """
    leaves = [leaf for leaf in _leaves(loss) if isinstance(leaf, nn.Parameter)]  # an input may need a gradient, too
    own = [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]
    missing = _missing(leaves, [*own, *_param_sites(trace)])
    if not missing:
        return None
    return (
        f"{_count(missing, leaves)} need gradients but belong to no module of the loss, so an optimiser of its "
        f"parameters() would not train them; make the model a torch.nn.Module that holds the layers it calls, or give "
        f"elbo.differentiable_loss(model, guide, ...) an optimiser of your own choice of parameters"
    )


def _leaves(loss: Tensor) -> list[Tensor]:
    """Tensors that the gradient of a loss is added to."""
    leaves, seen, stack = [], set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return leaves


def _param_sites(trace: Trace | None) -> list[Tensor]:
    sites: list[Any] = [] if trace is None else [trace.nodes[name]["value"] for name in trace.param_nodes]
    return [site.unconstrained() for site in sites]


def _missing(leaves: Iterable[Tensor], known: Iterable[Tensor]) -> list[Tensor]:
    ids = {id(tensor) for tensor in known}
    return [leaf for leaf in leaves if id(leaf) not in ids]


def _count(missing: list[Tensor], leaves: Sequence[Tensor]) -> str:
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in missing[:5])
    return f"{len(missing)} of {len(leaves)} parameters (shapes {shapes})"
