"""The pages that are made of results/: where it helps, and the tables of every study."""

from __future__ import annotations

import os
from pathlib import Path

from experiments.files import write_text
from experiments.report.results import RESULTS, results_in
from experiments.report.where_it_helps import PAGE, findings, page_of

__all__ = ["run", "write_tables"]


def write_tables(folder: Path) -> None:
    """Write a page for every study into a folder, leave alone those that have not changed, and remove all others."""
    pictures = os.path.relpath(RESULTS / "pictures", folder)
    pages = {report.name: report.markdown(source, pictures=pictures) for report, source in results_in(RESULTS)}
    entries = "\n".join(pages)
    pages["index"] = f"# Tables\n\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            write_text(path, text)
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()


def run(_: object) -> None:
    """Write all pages."""
    folder = PAGE.parent / "results" / "tables"
    write_text(PAGE, page_of(findings()))
    write_tables(folder)
    print(PAGE, folder, sep="\n")
