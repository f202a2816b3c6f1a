"""Whether a picture can be read: its texts are drawn where one sees them, and it says what it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

SLACK = 2.0  # pixels by which a text may stand outside the figure
OVERLAP = 3.0  # pixels by which the boxes of two texts may overlap, as boxes are larger than letters


@pytest.fixture(autouse=True)
def readable_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every picture that is saved during a test; import this fixture to use it in a file."""
    save = Figure.savefig

    def savefig(figure: Figure, *args: object, **options: object) -> None:
        assert faults(figure, tight=options.get("bbox_inches") == "tight") == []
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)


def faults(figure: Figure, *, tight: bool = False) -> list[str]:
    """Return what keeps a picture from being read; an empty list of one that is well.

    No text covers another one. Every text has to lie inside the figure, and an annotation inside its axes, as others
    are not drawn. Axes with numbers have labels, or share those of the figure. The picture or each of its panels has a
    title.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    outside = [] if tight else [text for text in _texts(figure) if not _is_inside(text, figure, renderer)]
    problems = [f"'{text.get_text()}' stands outside" for text in outside]
    problems += [f"'{first}' and '{second}' overlap" for first, second in _overlaps(figure, renderer)]
    panels = [
        axes for axes in figure.axes if axes.get_visible() and axes.has_data() and axes.get_label() != "<colorbar>"
    ]
    for axes in panels:
        problems += [f"an annotation '{text.get_text()}' is clipped" for text in axes.texts if _is_clipped(text)]
        for side, shared in (("x", figure.get_supxlabel()), ("y", figure.get_supylabel())):
            if axes.axison and _has_ticks(axes, side) and not (getattr(axes, f"get_{side}label")() or shared):
                problems.append(f"the {side} axis of '{axes.get_title()}' has numbers and no label")
    if not figure.get_suptitle() and not all(axes.get_title() for axes in panels):
        problems.append("a panel has no title, nor has the picture")
    return problems


def _texts(figure: Figure) -> Iterator[Text]:
    """Texts that are drawn, without the numbers at the ticks, for which the layout makes room."""
    labels = [text for axes in figure.axes if axes.get_visible() for text in _texts_of(axes)]
    for text in [*figure.texts, *labels]:
        if text.get_visible() and text.get_text().strip() and not (isinstance(text, Annotation) and _is_clipped(text)):
            yield text


def _texts_of(axes: Axes) -> Iterator[Text]:
    yield from (axes.title, *axes.texts)
    if axes.axison:
        yield from (axes.xaxis.label, axes.yaxis.label)
    if axes.get_legend():
        yield from axes.get_legend().get_texts()


def _overlaps(figure: Figure, renderer: RendererAgg) -> Iterator[tuple[str, str]]:
    """Pairs of texts of which one is drawn over a good part of the other; legends of the figure count too."""
    legend_texts = [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in [*_texts(figure), *legend_texts]]
    for number, (first, box) in enumerate(boxes):
        for second, second_box in boxes[number + 1 :]:
            width = min(box.x1, second_box.x1) - max(box.x0, second_box.x0)
            height = min(box.y1, second_box.y1) - max(box.y0, second_box.y0)
            if width > OVERLAP and height > OVERLAP:
                yield first, second


def _is_inside(text: Text, figure: Figure, renderer: RendererAgg) -> bool:
    box, frame = text.get_window_extent(renderer), figure.bbox
    left, below = box.x0 < frame.x0 - SLACK, box.y0 < frame.y0 - SLACK
    return not (left or below or box.x1 > frame.x1 + SLACK or box.y1 > frame.y1 + SLACK)


def _is_clipped(text: Text) -> bool:
    """Whether an annotation of data lies beyond the limits of its axes, where matplotlib does not draw it."""
    if not isinstance(text, Annotation) or text.xycoords != "data" or text.get_annotation_clip() is False:
        return False
    assert text.axes is not None
    return not text.axes.viewLim.contains(*text.xy)


def _has_ticks(axes: Axes, side: str) -> bool:
    axis = getattr(axes, f"{side}axis")
    return any(label.get_text() for label in axis.get_ticklabels()) and not all(
        any(letter.isalpha() for letter in label.get_text()) for label in axis.get_ticklabels() if label.get_text()
    )
