"""Views of a page: sentence pairs, captions of pictures, attention heads, all as words and named weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_attention.analysis.alignments.links import GoldAlignment
from pyro_attention.analysis.alignments.weights import Link, check_matrix

__all__ = ["AlignmentView", "Panel", "RegionView", "View", "heads_view"]

Weights = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Panel:
    """One matrix of a view.

    Attributes:
        group: Scheme or attention site that it belongs to; empty if there is only one.
        name: Its name in the group: prior, posterior, or a head.
        samples: Weights ``[S, M, N]``, with S = 1 where they are known.
    """

    group: str
    name: str
    samples: Tensor


class View:
    """Weights between M rows (target words, words of a caption, queries) and N columns (source words, regions, keys).

    Args:
        rows: Words that attend, M.
        columns: Words or regions that are attended to, N.
        names: Names of the rows and of the columns as a whole.
        weights: Group and name of every matrix (:class:`Panel`), in the order in which they are offered, and its
            samples ``[S, M, N]``, or weights ``[M, N]`` that are known.
        title: Title of the view.
        kind: ``"attention"`` for weights, ``"links"`` for probabilities of links, whose rows need not sum to one; the
            page chooses its words by it.

    Raises:
        TypeError: Words are no texts, or weights no floats.
        ValueError: No weights, wrong shapes, NaN, or entries outside [0, 1], or an unknown kind.
    """

    def __init__(
        self,
        rows: Sequence[str],
        columns: Sequence[str],
        names: tuple[str, str],
        weights: Iterable[tuple[str, str, Tensor]],
        *,
        title: str = "",
        kind: Literal["attention", "links"] = "attention",
    ) -> None:
        if kind not in ("attention", "links"):
            raise ValueError(f"kind is {kind!r}, expected 'attention' or 'links'")
        self.kind = kind
        for side, words in (("rows", rows), ("columns", columns)):
            if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
                raise TypeError(f"{side} are {words!r:.100}, expected a sequence of words, at least one")
        self.rows, self.columns, self.names, self.title = rows, columns, names, title
        self.panels = [Panel(group, name, self._checked(group, name, matrix)) for group, name, matrix in weights]
        if not self.panels:
            raise ValueError("posterior is an empty mapping, expected weights of at least one scheme or site")

    def _checked(self, group: str, name: str, weights: Tensor) -> Tensor:
        """Return weights as ``[S, M, N]`` on the CPU, in [0, 1]."""
        what = f"{name} of {group}" if group else name
        checked, shape = check_matrix(weights, name=f"{what} weights"), (len(self.rows), len(self.columns))
        if checked.shape[1:] != shape:
            raise ValueError(
                f"{what} has weights of shape {tuple(weights.shape)}, expected [S, {shape[0]}, {shape[1]}]: "
                f"{self.names[0]} by {self.names[1]}; merge pieces into words, drop special tokens and padding"
            )
        return checked.cpu().clamp(max=1.0)


def _schemes(posterior: Weights, prior: Weights | None) -> Iterator[tuple[str, str, Tensor]]:
    """Return prior and posterior of one scheme, or of several schemes by name."""
    posteriors = posterior if isinstance(posterior, Mapping) else {"": posterior}
    priors = {} if prior is None else prior if isinstance(prior, Mapping) else {"": prior}
    if unknown := [scheme for scheme in priors if scheme not in posteriors]:
        raise ValueError(f"prior has {unknown}, which posterior does not have; expected some of {list(posteriors)}")
    for scheme, weights in posteriors.items():
        if scheme in priors:
            yield scheme, "prior", priors[scheme]
        yield scheme, "posterior", weights


class AlignmentView(View):
    """View of a sentence and its translation.

    Args:
        source: Source words, N.
        target: Target words, M.
        posterior: Samples ``[S, M, N]``, or weights ``[M, N]`` that are known; of several schemes a mapping from their
            names. Rows sum to one, to less where special tokens were dropped, or to more where each weight is the
            probability of a link of its own.
        prior: Samples or weights of the prior, in the form of ``posterior``, of all schemes or of some; None shows
            none.
        languages: Names of source and target.
        gold: Gold links, which are outlined.
        title: Title of the view.
        kind: ``"attention"``, or ``"links"`` where each weight is the probability of a link of its own.

    Raises:
        TypeError: Words are no texts, or weights no floats.
        ValueError: No weights, wrong shapes, NaN, entries outside [0, 1], a prior of a scheme without a posterior, or a
            gold link outside of the words.

    Example:
        >>> samples = torch.tensor([[[0.9, 0.1], [0.3, 0.7]], [[0.7, 0.3], [0.1, 0.9]]])
        >>> view = AlignmentView(source=["das", "Haus"], target=["the", "house"], posterior=samples)
        >>> [(panel.name, tuple(panel.samples.shape)) for panel in view.panels]
        [('posterior', (2, 2, 2))]
    """

    def __init__(
        self,
        *,
        source: Sequence[str],
        target: Sequence[str],
        posterior: Weights,
        prior: Weights | None = None,
        languages: tuple[str, str] = ("source", "target"),
        gold: GoldAlignment | None = None,
        title: str = "",
        kind: Literal["attention", "links"] = "attention",
    ) -> None:
        super().__init__(target, source, languages[::-1], _schemes(posterior, prior), title=title, kind=kind)
        links = frozenset[Link]() if gold is None else gold.possible
        outside = [(s, t) for s, t in links if not (0 <= s < len(source) and 0 <= t < len(target))]
        if outside:
            raise ValueError(
                f"gold has the link {min(outside)}, expected words counted from 0, of {len(source)} source and "
                f"{len(target)} target words"
            )
        self.gold = gold


class RegionView(View):
    """View of the caption of a picture, each word with the regions that it was read from.

    Args:
        words: Words of the caption, M.
        picture: uint8, ``[height, width]`` in gray or ``[3, height, width]`` in red, green and blue.
        grid: Numbers of rows and columns of the regions, which divide the picture into equal parts.
        posterior: Weights of the regions, row by row, ``[S, M, rows * columns]``; see :class:`AlignmentView`.
        prior: Samples or weights of the prior, in the form of ``posterior``.
        title: Title of the view.

    Raises:
        TypeError: Words are no texts, or weights no floats.
        ValueError: As for :class:`AlignmentView`; a picture of another dtype or shape, or a grid without regions.

    Example:
        >>> picture = torch.zeros(3, 32, 32, dtype=torch.uint8)
        >>> weights = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
        >>> RegionView(words=["dog"], picture=picture, grid=(2, 2), posterior=weights).columns[1]
        'row 1, column 2'
    """

    def __init__(
        self,
        *,
        words: Sequence[str],
        picture: Tensor,
        grid: tuple[int, int],
        posterior: Weights,
        prior: Weights | None = None,
        title: str = "",
    ) -> None:
        shape = tuple(picture.shape)
        if picture.dtype != torch.uint8 or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 3):
            raise ValueError(
                f"picture has {picture.dtype} and shape {shape}, expected torch.uint8 and [height, width] or "
                f"[3, height, width]"
            )
        regions = [f"row {row + 1}, column {column + 1}" for row in range(grid[0]) for column in range(grid[1])]
        if not regions:
            raise ValueError(f"grid is {grid}, expected at least one row and one column")
        super().__init__(words, regions, ("caption", "region"), _schemes(posterior, prior), title=title)
        self.picture, self.grid = picture, grid


def heads_view(
    samples: Mapping[str, Tensor], tokens: Sequence[str], *, item: int = 0, mask: Tensor | None = None, title: str = ""
) -> View:
    """Make the view of one text of a batch, with a matrix a head, from :func:`sample_posterior` of a transformer.

    Args:
        samples: Names of self-attention sites to samples ``[S, batch, H, L, L]``; leave out sites that you do not need,
            because the page holds every head.
        tokens: Tokens of the text with those of its padding, L, such as ``tokenizer.convert_ids_to_tokens(ids)``.
        item: Index of the text in the batch.
        mask: True at tokens that are no padding, ``[L]``: a row of the attention mask; all when omitted.
        title: Title of the view.

    Raises:
        TypeError: Tokens are no texts, or weights no floats.
        ValueError: As for :class:`View`; a site of another length, an item outside the batch, or a wrong mask.

    Example:
        >>> samples = {"encoder.0": torch.full((5, 1, 2, 3, 3), 1 / 3)}
        >>> view = heads_view(samples, ["[CLS]", "hello", "[PAD]"], mask=torch.tensor([1, 1, 0]))
        >>> view.rows, tuple(view.panels[0].samples.shape)
        (['[CLS]', 'hello'], (5, 2, 2))
    """
    if isinstance(samples, Tensor):
        raise TypeError("samples are a tensor, expected the dict of sample_posterior: names of sites to samples")
    length = len(tokens)
    keep = torch.ones(length, dtype=torch.bool) if mask is None else mask.bool().cpu()
    if keep.shape != (length,) or not keep.any():
        raise ValueError(f"mask has shape {tuple(keep.shape)}, expected [{length}] as the tokens, with one True")
    heads = []
    for site, drawn in samples.items():
        if drawn.dim() != 5 or drawn.shape[-2:] != (length, length) or not -drawn.size(1) <= item < drawn.size(1):
            raise ValueError(
                f"samples of site '{site}' have shape {tuple(drawn.shape)}, expected [S, batch, H, {length}, {length}] "
                f"with an item {item} in the batch; leave out the sites of other texts and of cross-attention"
            )
        chosen = drawn[:, item].cpu()[..., keep, :][..., keep]
        heads += [(site, f"head {head}", weights) for head, weights in enumerate(chosen.unbind(1))]
    words = [token for token, shown in zip(tokens, keep.tolist(), strict=True) if shown]
    return View(words, words, ("query", "key"), heads, title=title)
