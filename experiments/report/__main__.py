"""Write the pages that are made of results/: where it helps, and the tables of every study.

python -m experiments.report
"""

from __future__ import annotations

import os
from pathlib import Path

from experiments.files import write_text
from experiments.report.results import RESULTS, results_in
from experiments.report.where_it_helps import PAGE, findings, page_of

__all__ = ["run", "tables"]

TABLES = PAGE.parent / "results" / "tables"


def tables(folder: Path) -> dict[str, str]:
    """Text of a page for every study, by its name; ``folder`` is where they will lie."""
    pictures = os.path.relpath(RESULTS / "pictures", folder)
    pages = {report.name: report.markdown(source, pictures=pictures) for report, source in results_in(RESULTS)}
    entries = "\n".join(pages)
    pages["index"] = f"# All tables\n\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
    return pages


def run() -> None:
    """Write all pages."""
    pages = {PAGE: page_of(findings())} | {TABLES / f"{name}.md": text for name, text in tables(TABLES).items()}
    for path, text in pages.items():
        write_text(path, text)
    print(PAGE, TABLES, sep="\n")


if __name__ == "__main__":
    run()
