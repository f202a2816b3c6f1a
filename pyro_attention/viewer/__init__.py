"""Pages to look at attention with: one HTML file that needs no network, for sentence pairs, captions and heads.

A view holds words and weights; :func:`write_viewer` writes a page of many views, and :func:`fragment` and
:func:`document` put them into a page of your own. Everything takes plain tensors, so it serves any model.
"""

from pyro_attention.viewer.page import LEAST, MOST_SAMPLES, document, fragment, write_viewer
from pyro_attention.viewer.views import AlignmentView, Panel, RegionView, View, heads_view

__all__ = [
    "LEAST",
    "MOST_SAMPLES",
    "AlignmentView",
    "Panel",
    "RegionView",
    "View",
    "document",
    "fragment",
    "heads_view",
    "write_viewer",
]
