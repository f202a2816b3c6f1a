"""Writing a page: one HTML file with its style, its script and its data inside."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from string import Template
from typing import Any

from pyro_attention.viewer.payload import LEAST, LEVEL, MOST_SAMPLES, differing, index_entry, payload
from pyro_attention.viewer.views import View

__all__ = ["document", "fragment", "write_viewer"]

_WHAT = (
    "For every word the page shows where the model looked when it read or wrote this word, and how sure it was. Point "
    "at a word, or move to it with the Tab and arrow keys: the stronger the colour of another word or of a cell of the "
    "matrix, the larger the attention weight between both."
)


def write_viewer(path: str | Path, views: Sequence[View], *, title: str, text: str = _WHAT) -> None:
    """Write a page that shows the views; it asks nothing of the network, and a file of that name is replaced.

    Mean and credible interval of every link are those of all samples. To keep the file small the page holds at most
    :data:`MOST_SAMPLES` samples of a link, evenly taken, and neither samples nor interval of a link whose interval ends
    below :data:`LEAST`.

    Args:
        path: The file.
        views: What is shown; the reader chooses one of them, and only that one is drawn.
        title: Title of the page.
        text: Says in plain words what one sees, above the views.

    Raises:
        TypeError: Something else than views.
        ValueError: No views.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from pyro_attention.viewer import AlignmentView
        >>> samples = torch.rand(50, 2, 2).softmax(-1)
        >>> view = AlignmentView(source=["das", "Haus"], target=["the", "house"], posterior=samples)
        >>> path = Path(tempfile.mkdtemp()) / "alignments.html"
        >>> write_viewer(path, [view], title="Two words")
        >>> "<h1>Two words</h1>" in path.read_text(encoding="utf-8")
        True
    """
    path = Path(path)
    intro = f'<p class="lead">{html.escape(text)}</p>' if text else ""
    page = document(title, intro + fragment(views))
    # whoever reads the folder meanwhile finds the old page or the new one
    partial = path.with_name(f".{path.name}.{token_hex(8)}.partial")
    try:
        partial.write_bytes(page)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def document(title: str, body: str) -> bytes:
    """A page in the look of the viewer, light and dark, encoded as UTF-8.

    Args:
        title: Its title, plain text.
        body: What stands below the title, HTML; it holds one :func:`fragment` at most.

    Example:
        >>> document("a < b", "<p>text</p>").decode().count("a &lt; b")
        2
    """
    page = Template(_file("page.html")).substitute(
        title=html.escape(title), style=_file("viewer.css"), body=body, script=_file("theme.js")
    )
    return page.encode("utf-8", "xmlcharrefreplace")  # half a surrogate pair, in a title, becomes a question mark


def fragment(views: Sequence[View]) -> str:
    """The viewer alone, HTML for the body of a :func:`document`: controls, data and script.

    Args:
        views: What is shown, as for :func:`write_viewer`.

    Raises:
        TypeError: Something else than views.
        ValueError: No views.

    Example:
        >>> import torch
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
    compared = [panel.name for panel in differing(views[0])]
    index = {
        "level": LEVEL,
        "least": LEAST,
        "samples": MOST_SAMPLES,
        "compared": "prior and posterior" if "prior" in compared else "the schemes",
        "views": [index_entry(view) for view in views],
    }
    data = [_data("viewer-index", index), *(_data(f"viewer-{n}", payload(view)) for n, view in enumerate(views))]
    scripts = "\n".join(_file(name) for name in ("parts.js", "links.js", "viewer.js"))
    return f"{_file('viewer.html')}{''.join(data)}<script>\n{scripts}</script>"


def _data(name: str, value: Any) -> str:
    """Data in an element that the browser does not run; as no `<` is left, nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


@cache
def _file(name: str) -> str:
    return files("pyro_attention.viewer").joinpath(name).read_text(encoding="utf-8")
