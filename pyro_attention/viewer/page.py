"""Writing of a viewer: one HTML file with style, script and data, whose weights are whole per mille."""

from __future__ import annotations

import base64
import html
import json
import math
import string
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import TypeAlias, Union

import torch
from torch import Tensor

from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.atomic_write import write_atomic
from pyro_attention.viewer.views import AlignmentView, Panel, RegionView, View

__all__ = ["LEAST", "MOST_SAMPLES", "document", "fragment", "index_entry", "payload", "write_viewer"]

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007
"""Data that JSON can hold."""

_LEVEL = 0.9  # mass of the credible intervals
MOST_SAMPLES = 40  # of each link that the page draws; mean and interval are of all
LEAST = 0.01  # links whose interval ends below it have neither interval nor samples in the page
_DIGITS = (string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/").encode()  # 0 to 63, as in base64
_LONGEST = 160  # letters of a sentence in the list
_POINTING = (
    "Point at a word, or move to it with the Tab and arrow keys: the stronger the color of another word or of a cell "
    "of the matrix, the larger the {measure} between both."
)
_MEASURES = {"attention": "attention weight", "links": "probability of a link"}
_LEADS = {
    "attention": "For every word the page shows where the model looked when it read or wrote this word, and how sure "
    f"it was. {_POINTING.format(measure=_MEASURES['attention'])}",
    "links": "For every word the page shows which words of the other text it may translate, and how probable each is. "
    f"{_POINTING.format(measure=_MEASURES['links'])}",
}
_RELATIONS = {
    "attention": {"target": "attends to", "source": "is attended to by"},
    "links": {"target": "is linked to", "source": "is linked to"},
}


def write_viewer(path: str | Path, views: Sequence[View], *, title: str, text: str | None = None) -> None:
    """Write a page that shows views and loads nothing from the network; a file of that name is replaced.

    Mean and credible interval of every link are of all samples. To keep the file small the page holds at most
    :data:`MOST_SAMPLES` samples of a link, evenly taken, and neither samples nor interval of a link whose interval ends
    below :data:`LEAST`.

    Args:
        path: The file.
        views: Views, of which the reader of the page chooses one at a time.
        title: Title of the page.
        text: Explanation above the views; a text about attention or links when omitted.

    Raises:
        TypeError: An entry is no view.
        ValueError: No views.
        OSError: The file cannot be written; one that was there is as it was.

    Example:
        >>> import tempfile
        >>> from pyro_attention.viewer import AlignmentView
        >>> samples = torch.rand(50, 2, 2).softmax(-1)
        >>> view = AlignmentView(source=["das", "Haus"], target=["the", "house"], posterior=samples)
        >>> path = Path(tempfile.mkdtemp()) / "alignments.html"
        >>> write_viewer(path, [view], title="Two words")
        >>> "<h1>Two words</h1>" in path.read_text(encoding="utf-8")
        True
    """
    shown = fragment(views)
    lead = _LEADS[views[0].kind] if text is None else text
    page = document(title, (f'<p class="lead">{html.escape(lead)}</p>' if lead else "") + shown)
    write_atomic(path, lambda file: file.write(page))


def document(title: str, body: str) -> bytes:
    """Return a page in the look of the viewer, light and dark, encoded as UTF-8.

    Args:
        title: Title of the page, plain text.
        body: HTML below the title; it holds one :func:`fragment` at most.

    Example:
        >>> document("a < b", "<p>text</p>").decode().count("a &lt; b")
        2
    """
    page = string.Template(_file("page.html")).substitute(
        title=html.escape(title), style=_file("viewer.css"), body=body, script=_file("theme.js")
    )
    return page.encode("utf-8", "xmlcharrefreplace")  # half a surrogate pair, in a title, becomes a question mark


def fragment(views: Sequence[View]) -> str:
    """Return the viewer alone, HTML for the body of a :func:`document`: controls, data and script.

    Args:
        views: Views, as for :func:`write_viewer`.

    Raises:
        TypeError: An entry is no view.
        ValueError: No views.

    Example:
        >>> from pyro_attention.viewer import AlignmentView
        >>> view = AlignmentView(source=["Haus"], target=["house"], posterior=torch.ones(1, 1))
        >>> page = document("One word", f"<p>Some text of your own.</p>{fragment([view])}")
        >>> page.count(b"</script>") > 2
        True
    """
    if isinstance(views, View) or not all(isinstance(view, View) for view in views):
        raise TypeError(f"views are {views!r:.100}, expected a sequence of views, such as [AlignmentView(...)]")
    if not views:
        raise ValueError("views are empty, expected at least one")
    compared = [panel.name for panel in _differing(views[0])]
    index = {
        "level": _LEVEL,
        "least": LEAST,
        "samples": MOST_SAMPLES,
        "compared": "prior and posterior" if "prior" in compared else "the schemes",
        "views": [index_entry(view) for view in views],
    }
    data = [_data("viewer-index", index), *(_data(f"viewer-{n}", payload(view)) for n, view in enumerate(views))]
    scripts = "\n".join(_file(name) for name in ("parts.js", "links.js", "viewer.js"))
    return f"{_file('viewer.html')}{''.join(data)}<script>\n{scripts}</script>"


def _data(name: str, value: Json) -> str:
    """Return data in an element that the browser does not run; without any `<` nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


@cache
def _file(name: str) -> str:
    return files("pyro_attention.viewer").joinpath(name).read_text(encoding="utf-8")


def _differing(view: View) -> list[Panel]:
    """Return the panels that are compared: the schemes' posteriors, or else prior and posterior, or else none."""
    posteriors = [panel for panel in view.panels if panel.name == "posterior"]
    if len(posteriors) > 1 or not posteriors:
        return posteriors
    return view.panels if len(view.panels) == 2 else []


def index_entry(view: View) -> dict[str, Json]:
    """Return the entry of a view in the list: its text, and numbers from 0 to 1 to sort and filter by.

    ``uncertainty`` and ``most`` are mean and maximum over the words of the entropy of their mean weights, over the log
    of their number; ``width`` is the mean width of the credible interval of each word's largest weight, None without
    samples; ``difference`` is the largest mean total variation between two of the panels that are compared.
    """
    panels = [panel for panel in view.panels if panel.name != "prior"]
    entropy = torch.stack([_uncertainty(panel.samples.mean(0)) for panel in panels]).mean(0)
    widths = [_width(panel.samples) for panel in panels if len(panel.samples) > 1]
    means = [panel.samples.mean(0) for panel in _differing(view)]
    distances = [0.5 * (first - second).abs().sum(-1).mean().item() for first, second in combinations(means, 2)]
    rows, columns = " ".join(view.rows), " ".join(view.columns)
    is_pair = isinstance(view, AlignmentView)  # its source stands first; regions are no words, and heads have one text
    text, words = (columns, f"{columns} {rows}") if is_pair else (rows, rows)
    return {
        "title": view.title,
        "text": text[:_LONGEST],
        "words": words,
        "uncertainty": round(entropy.mean().item(), 4),
        "most": round(entropy.max().item(), 4),
        "width": round(sum(widths) / len(widths), 4) if widths else None,
        "difference": round(max(distances), 4) if distances else None,
    }


def payload(view: View) -> dict[str, Json]:
    """Return the data that the page shows of a chosen view; a weight of 0.25 is 250."""
    content: dict[str, Json] = {
        "title": view.title,
        "measure": _MEASURES[view.kind],
        "relation": _RELATIONS[view.kind],
        "names": {"target": view.names[0], "source": view.names[1]},
        "target": list(view.rows),
        "source": list(view.columns),
        "panels": [_panel(panel) for panel in view.panels],
    }
    if isinstance(view, RegionView):
        content |= {"picture": _data_uri(view.picture), "grid": list(view.grid)}
    if isinstance(view, AlignmentView) and view.gold is not None:
        gold = view.gold
        content["gold"] = [[source, target, (source, target) in gold.sure] for source, target in sorted(gold.possible)]
    return content


def _panel(panel: Panel) -> dict[str, Json]:
    mean, largest = panel.samples.mean(0), math.ceil(1000 * panel.samples.max().item() - 1e-3)  # not 51 of .05
    return {
        "group": panel.group,
        "name": panel.name,
        "count": len(panel.samples),
        "mean": _per_mille(mean),
        "uncertainty": _per_mille(_uncertainty(mean)),
        "largest": largest,
        "links": _links(panel.samples, max(1, largest)) if len(panel.samples) > 1 else [],
    }


def _links(samples: Tensor, largest: int) -> list[list[list[int | str]]]:
    """Return the links of each row that may be at least LEAST: column, ends of the interval, and samples as digits.

    The digit 63 stands for the largest sample, so that small weights are as exact as large ones.
    """
    mean, low, high = equal_tailed(samples, _LEVEL)
    chosen = torch.linspace(0, len(samples) - 1, min(len(samples), MOST_SAMPLES)).round().long()
    digits = torch.tensor(list(_DIGITS), dtype=torch.uint8)[
        (63_000 / largest * samples[chosen]).round().clamp_max(63).long()
    ]
    text, count = digits.permute(1, 2, 0).contiguous().numpy().tobytes().decode("ascii"), len(chosen)
    ends, columns = torch.stack([_rounded(low), _rounded(high)], -1).tolist(), mean.size(1)
    links: list[list[list[int | str]]] = [[] for _ in range(len(mean))]
    for row, column in (high.maximum(mean) >= LEAST).nonzero().tolist():
        start = (row * columns + column) * count
        links[row].append([column, *ends[row][column], text[start : start + count]])
    return links


def _uncertainty(mean: Tensor) -> Tensor:
    """Return the entropy of each row of mean weights ``[M, N]`` over the logarithm of N, 0 to 1."""
    rows = mean.double() / mean.double().sum(-1, keepdim=True).clamp_min(1e-12)
    entropy: Tensor = torch.special.entr(rows).sum(-1)
    return entropy / math.log(max(2, mean.size(-1)))


def _width(samples: Tensor) -> float:
    """Return the mean over the rows of the width of the interval of their largest mean weight."""
    mean, low, high = equal_tailed(samples, _LEVEL)
    largest = mean.argmax(-1, keepdim=True)
    return (high - low).gather(-1, largest).mean().item()


def _rounded(values: Tensor) -> Tensor:
    return (1000 * values).round().long()


def _per_mille(values: Tensor) -> Json:
    numbers: Json = _rounded(values).tolist()
    return numbers


def _data_uri(picture: Tensor) -> str:
    """Encode a picture as PNG in an address; the format is written here, so that no image library is needed."""
    rows = picture.cpu().permute(1, 2, 0) if picture.dim() == 3 else picture.cpu().unsqueeze(-1)
    height, width, channels = rows.shape
    lines = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows.reshape(height, -1)], 1)  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(lines.numpy().tobytes(), 9)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
