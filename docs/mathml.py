"""Formulas as MathML, which browsers draw without a script from a network."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

__all__ = ["add_to"]


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(" ".join(node.astext().split())))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    formula = tex2mathml(" ".join(node.astext().split()), as_block=True)
    writer.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def add_to(app: Any) -> None:
    """Register the renderer under the name "mathml"."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
