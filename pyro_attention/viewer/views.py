"""What a page shows: sentence pairs, captions of pictures and attention heads, all as words and named weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_attention.analysis.alignments.links import GoldAlignment
from pyro_attention.analysis.alignments.weights import check_matrix

__all__ = ["AlignmentView", "HeadsView", "Panel", "RegionView", "View", "heads_view"]

Weights = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Panel:
    """One matrix of a view.

    Attributes:
        group: What it belongs to, a scheme or an attention site; empty where there is only one.
        name: Its name in the group: prior, posterior, or a head.
        samples: Weights ``[S, M, N]``, with S = 1 where they are known.
    """

    group: str
    name: str
    samples: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class View(ABC):
    r"""Weights between M rows (target words, words of a caption, queries) and N columns (source words, regions, keys).

    The kinds of views differ in what rows and columns are. :attr:`panels` are checked when a view is made.

    Args:
        title: What stands above it.
    """

    title: str = ""

    def __post_init__(self) -> None:
        for side, words in (("rows", self.rows), ("columns", self.columns)):
            if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
                raise TypeError(f"{side} are {words!r:.100}, expected a sequence of words, at least one")
        if not self.panels:
            raise ValueError("posterior is an empty mapping, expected weights of at least one scheme or site")

    @property
    @abstractmethod
    def rows(self) -> Sequence[str]:
        """Words that attend, M."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """What is attended to, N."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, str]:
        """What rows and columns are called."""

    @property
    @abstractmethod
    def panels(self) -> list[Panel]:
        """The matrices, in the order in which they are offered."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _SchemesView(View):
    """Weights of one scheme, or of several by name, each with its prior where it has one."""

    posterior: Weights
    prior: Weights | None = None

    @cached_property
    def panels(self) -> list[Panel]:
        """Prior and posterior of every scheme."""
        posteriors = self.posterior if isinstance(self.posterior, Mapping) else {"": self.posterior}
        priors = {} if self.prior is None else self.prior
        priors = priors if isinstance(priors, Mapping) else {"": priors}
        if unknown := [scheme for scheme in priors if scheme not in posteriors]:
            raise ValueError(f"prior has {unknown}, which posterior has not; expected some of {list(posteriors)}")
        found = []
        for scheme, posterior in posteriors.items():
            of = f" of {scheme}" if scheme else ""
            if scheme in priors:
                found.append(Panel(scheme, "prior", _checked(self, f"prior{of}", priors[scheme])))
            found.append(Panel(scheme, "posterior", _checked(self, f"posterior{of}", posterior)))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class AlignmentView(_SchemesView):
    """A sentence and its translation.

    Args:
        title: What stands above it.
        source: Source words, N.
        target: Target words, M.
        posterior: Samples ``[S, M, N]``, or weights ``[M, N]`` that are known; of several schemes a mapping from their
            names. Rows sum to one, to less where special tokens were dropped, or to more where each weight is the
            probability of a link of its own.
        prior: The same of the prior, of all schemes or of some; None where there is nothing to show.
        languages: What source and target are called.
        gold: Links that people have made, to be outlined.

    Raises:
        TypeError: Words are no texts, or weights no floats.
        ValueError: Wrong shapes, NaN, entries outside [0, 1], or a prior of a scheme that has no posterior.

    Example:
        >>> samples = torch.tensor([[[0.9, 0.1], [0.3, 0.7]], [[0.7, 0.3], [0.1, 0.9]]])
        >>> view = AlignmentView(source=["das", "Haus"], target=["the", "house"], posterior=samples)
        >>> [(panel.name, tuple(panel.samples.shape)) for panel in view.panels]
        [('posterior', (2, 2, 2))]
    """

    source: Sequence[str]
    target: Sequence[str]
    languages: tuple[str, str] = ("source", "target")
    gold: GoldAlignment | None = None

    @property
    def rows(self) -> Sequence[str]:
        return self.target

    @property
    def columns(self) -> Sequence[str]:
        return self.source

    @property
    def names(self) -> tuple[str, str]:
        return self.languages[1], self.languages[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionView(_SchemesView):
    """The caption of a picture, each word with the regions that it was read from.

    Args:
        title: What stands above it.
        words: Words of the caption, M.
        picture: uint8, ``[height, width]`` in grey or ``[3, height, width]`` in red, green and blue.
        grid: Numbers of rows and columns of the regions, which divide the picture into equal parts.
        posterior: Weights of the regions, row by row, ``[S, M, rows * columns]``; see :class:`AlignmentView`.
        prior: The same of the prior.

    Raises:
        TypeError: Words are no texts, or weights no floats.
        ValueError: As for :class:`AlignmentView`; a picture of another kind or shape, or a grid without regions.

    Example:
        >>> picture = torch.zeros(3, 32, 32, dtype=torch.uint8)
        >>> weights = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
        >>> RegionView(words=["dog"], picture=picture, grid=(2, 2), posterior=weights).columns[1]
        'row 1, column 2'
    """

    words: Sequence[str]
    picture: Tensor
    grid: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.grid) < 1:
            raise ValueError(f"grid is {self.grid}, expected at least one row and one column")
        shape = tuple(self.picture.shape)
        if self.picture.dtype != torch.uint8 or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 3):
            raise ValueError(
                f"picture has {self.picture.dtype} and shape {shape}, expected torch.uint8 and [height, width] or "
                f"[3, height, width]"
            )
        super().__post_init__()

    @property
    def rows(self) -> Sequence[str]:
        return self.words

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the regions, row by row."""
        rows, columns = self.grid
        return [f"row {row}, column {column}" for row in range(1, rows + 1) for column in range(1, columns + 1)]

    @property
    def names(self) -> tuple[str, str]:
        return "caption", "region"


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadsView(View):
    """Attention heads of a transformer: one matrix of queries and keys for each head of each site.

    Attributes:
        queries: Tokens that attend, which are those that are attended to.
        posterior: Names of the sites to samples ``[S, H, M, M]``, as :func:`heads_view` takes them from a batch.
    """

    queries: Sequence[str]
    posterior: Mapping[str, Tensor]

    @property
    def rows(self) -> Sequence[str]:
        return self.queries

    @property
    def columns(self) -> Sequence[str]:
        return self.queries

    @property
    def names(self) -> tuple[str, str]:
        return "query", "key"

    @cached_property
    def panels(self) -> list[Panel]:
        """Every head of every site."""
        found = []
        for site, samples in self.posterior.items():
            for head, weights in enumerate(samples.unbind(1)):
                name = f"posterior of site '{site}', head {head},"
                found.append(Panel(site, f"head {head}", _checked(self, name, weights)))
        return found


def heads_view(
    samples: Mapping[str, Tensor], tokens: Sequence[str], *, item: int = 0, mask: Tensor | None = None, title: str = ""
) -> HeadsView:
    """View of one text of a batch, from the samples of :func:`sample_posterior` of a transformer.

    Args:
        samples: Names of self-attention sites to samples ``[S, batch, H, L, L]``; leave out sites that you do not need,
            because the page holds every head.
        tokens: Tokens of the text with those of its padding, L, such as ``tokenizer.convert_ids_to_tokens(ids)``.
        item: Place of the text in the batch.
        mask: Which tokens are no padding, ``[L]``: a row of the attention mask; all when omitted.
        title: What stands above the view.

    Raises:
        TypeError: Tokens are no texts, or weights no floats.
        ValueError: NaN, entries outside [0, 1], a site of another length, an item outside the batch, or a wrong mask.

    Example:
        >>> samples = {"encoder.0": torch.full((5, 1, 2, 3, 3), 1 / 3)}
        >>> view = heads_view(samples, ["[CLS]", "hello", "[PAD]"], mask=torch.tensor([1, 1, 0]))
        >>> view.queries, tuple(view.panels[0].samples.shape)
        (['[CLS]', 'hello'], (5, 2, 2))
    """
    length = len(tokens)
    keep = torch.ones(length, dtype=torch.bool) if mask is None else mask.bool().cpu()
    if keep.shape != (length,) or not keep.any():
        raise ValueError(f"mask has shape {tuple(keep.shape)}, expected [{length}] as the tokens, with one True")
    chosen = {}
    for site, drawn in samples.items():
        if drawn.dim() != 5 or drawn.shape[-2:] != (length, length) or not -drawn.size(1) <= item < drawn.size(1):
            raise ValueError(
                f"samples of site '{site}' have shape {tuple(drawn.shape)}, expected [S, batch, H, {length}, {length}] "
                f"with an item {item} in the batch; leave out the sites of other texts and of cross-attention"
            )
        chosen[site] = drawn[:, item].cpu()[..., keep, :][..., keep]
    kept = [token for token, shown in zip(tokens, keep.tolist(), strict=True) if shown]
    return HeadsView(queries=kept, posterior=chosen, title=title)


def _checked(view: View, name: str, weights: Tensor) -> Tensor:
    """Weights as ``[S, M, N]`` on the CPU, in [0, 1]."""
    checked = check_matrix(weights, name=f"{name} weights")
    shape = len(view.rows), len(view.columns)
    if checked.shape[1:] != shape:
        raise ValueError(
            f"{name} has weights of shape {tuple(weights.shape)}, expected [S, {shape[0]}, {shape[1]}]: "
            f"{view.names[0]} by {view.names[1]}; merge pieces into words, drop special tokens and padding"
        )
    return checked.cpu().clamp(max=1.0)
