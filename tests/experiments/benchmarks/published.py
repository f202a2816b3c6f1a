"""What a benchmark publishes."""

from pathlib import Path

from experiments.report.results import results_in


def page(folder: Path) -> str:
    """The page that is made of the only study in a folder."""
    ((report, source),) = results_in(folder)
    return report.markdown(source, pictures="pictures")
