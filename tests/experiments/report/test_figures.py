"""Panels of a figure can be read where the last row of the grid is not full."""

import pytest
import torch

from experiments.report.figures import reliability_panels


@pytest.mark.parametrize("panels", [1, 4, 6])
def test_the_lowest_panel_of_every_column_has_its_numbers(panels):
    found = {str(number): (torch.linspace(0, 1, 9), torch.ones(9, dtype=torch.bool)) for number in range(panels)}
    figure = reliability_panels(found, confidence="probability", right="share")
    figure.draw_without_rendering()
    shown = [axis for axis in figure.axes if axis.get_visible()]
    numbered = [any(label.get_visible() for label in axis.get_xticklabels()) for axis in shown]
    columns = min(4, panels)
    assert numbered == [number >= panels - columns for number in range(panels)]
