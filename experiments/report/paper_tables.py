"""Tables on pages that are made of experiments/results, most of them beside the papers' numbers.

A page has each between two comments, ``<!-- table: NAME -->`` and ``<!-- end -->``; ``python -m experiments.pages``
fills in what stands between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from experiments.report.report import RESULTS, Report, markdown_table, results_in
from experiments.report.statistics import Difference, Estimate, Row

_DOCS = RESULTS.parents[1] / "docs"
PAGES = (
    _DOCS / "papers.md",
    *sorted((_DOCS / "papers").glob("*.md")),
    _DOCS / "results" / "transformer_uncertainty.md",
)
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.S)

# Deng et al. (2018), tables 1 and 3: perplexity, BLEU, entropy
_DENG = {
    "soft": ("7.03", "32.31", "1.24"),
    "marginal": ("6.33", "33.08", ".82"),
    "hard_enum": ("7.37", "31.40", ".05"),
    "hard_sample": ("7.38", "31.00", ".07"),
    "dirichlet": ("7.58", "30.05", "2.02"),
    "categorical_enum": ("6.03", "33.10", ".54"),
    "categorical_sample": ("6.13", "33.09", ".52"),
}
# table 2, left: K-max perplexity and BLEU with five weights
_DENG_K_MAX = {
    "marginal": ("6.89", "32.97"),
    "hard_enum": ("7.37", "31.37"),
    "hard_sample": ("7.38", "31.04"),
    "categorical_enum": ("6.37", "33.00"),
    "categorical_sample": ("6.45", "33.01"),
}
# tables 1 and 3, of questions about photographs (VQA v2): NLL, accuracy and entropy
_DENG_QUESTIONS = {
    "soft": ("1.76", "58.93", "2.70"),
    "marginal": ("1.69", "60.33", "2.66"),
    "hard_enum": ("1.78", "57.60", ".73"),
    "hard_sample": ("1.82", "56.30", ".58"),
    "categorical_enum": ("1.69", "58.44", "2.07"),
    "categorical_sample": ("1.75", "57.52", "2.44"),
}
_RUNS = {"going on": "translation-multi30k", "from scratch": "translation-multi30k-from-scratch"}


def first_table(name: str, reports: Mapping[str, Report], *, column: str | None = None) -> Mapping[str, Row]:
    """Return the rows of the first table of a report by the names in their first column; none where it is missing.

    With ``column`` it is the first table that has this column.
    """
    parts = reports[name].parts if name in reports else ()
    rows = next((part.rows for part in parts if part.rows and (column is None or column in part.rows[0])), ())
    return {str(next(iter(row.values()))): row for row in rows}


def cell(rows: Mapping[str, Row], row: str, column: str, digits: int) -> str:
    """Return the mean of a cell, with its standard deviation over the seeds where there are several; "-" without it."""
    value = rows.get(row, {}).get(column, "-")
    if not isinstance(value, Estimate):
        return str(value)
    spread = "" if value.count < 2 else f" ± {value.spread:.{digits}f}"
    return re.sub(r"\b0(?=\.)", "", f"{value.mean:.{digits}f}{spread}")


def schemes(reports: Mapping[str, Report]) -> str:
    """Return perplexity, BLEU and entropy of every scheme: the paper's, going on from soft attention, from scratch."""
    tables = {title: first_table(name, reports) for title, name in _RUNS.items()}
    rows = []
    for scheme, paper in _DENG.items():
        row = {"scheme": f"`{scheme}`"}
        for number, (metric, digits) in enumerate({"perplexity": 2, "BLEU": 1, "entropy": 2}.items()):
            row[f"{metric}: paper"] = paper[number]
            row |= {f"{metric}, {title}": cell(table, scheme, metric, digits) for title, table in tables.items()}
        rows.append(row)
    return markdown_table(rows)


def k_max(reports: Mapping[str, Report]) -> str:
    """Return perplexity and BLEU of every scheme when it is read with the five largest weights of each word."""
    tables = {title: first_table(name, reports) for title, name in _RUNS.items()}
    rows = []
    for scheme, (perplexity, bleu) in _DENG_K_MAX.items():
        exact = _DENG[scheme]
        row = {"scheme": f"`{scheme}`", "perplexity: paper": f"{exact[0]}, {perplexity}"}
        row |= {f"perplexity, {of}": _pair(table, scheme, "perplexity", "K-max ppl", 2) for of, table in tables.items()}
        row["BLEU: paper"] = f"{exact[1]}, {bleu}"
        row |= {f"BLEU, {of}": _pair(table, scheme, "BLEU", "K-max BLEU", 1) for of, table in tables.items()}
        rows.append(row)
    return markdown_table(rows)


def _pair(rows: Mapping[str, Row], row: str, first: str, second: str, digits: int) -> str:
    cells = [cell(rows, row, column, digits).partition(" ±")[0] for column in (first, second)]
    return "-" if cells == ["-", "-"] else ", ".join(cells)


def questions(reports: Mapping[str, Report]) -> str:
    """Return NLL, accuracy and entropy of every scheme that answers questions: the paper's, and ours on two sets."""
    sets = {"digits": "vqa-alignments-digits", "easy-VQA": "vqa-alignments-easy_vqa"}
    scores = {title: first_table(name, reports) for title, name in sets.items()}
    entropy = "entropy of attention"
    looking = {title: first_table(name, reports, column=entropy) for title, name in sets.items()}
    looking = {title: table for title, table in looking.items() if table}
    columns = (("NLL", "NLL", scores, 3), ("accuracy %", "accuracy %", scores, 1), ("entropy", entropy, looking, 2))
    rows = []
    for scheme, paper in _DENG_QUESTIONS.items():
        row = {"scheme": f"`{scheme}`"}
        for number, (metric, column, tables, digits) in enumerate(columns):
            row[f"{metric}: paper"] = paper[number]
            row |= {f"{metric}, {title}": cell(table, scheme, column, digits) for title, table in tables.items()}
        rows.append(row)
    return markdown_table(rows)


def other_readings(reports: Mapping[str, Report]) -> str:
    """Return the perplexities of networks that are read in other ways than they were trained."""
    rows = [
        {name: entry if isinstance(entry, str) else cell({"": row}, "", name, 2) for name, entry in row.items()}
        for row in first_table("readings-multi30k", reports).values()
    ]
    return markdown_table(rows) if rows else "No table of it is published yet."


def hybrid_shares(reports: Mapping[str, Report]) -> str:
    """Return the shares of doubly normalized attention that hybrid attention ends with, a column a layer."""
    rows = first_table("pretraining-english", reports, column="layers.0").values()
    return markdown_table([{name: str(entry) for name, entry in row.items()} for row in rows]) if rows else "-"


def pavpu(reports: Mapping[str, Report]) -> str:
    """Return PAvPU of soft attention under dropout, and of WC under both noises, at all levels."""
    parts = reports["vqa-digits"].parts if "vqa-digits" in reports else ()
    rows = list[dict[str, str]]()
    for name, title in (("soft", "Samples of dropout alone"), ("WC", "Samples of attention and dropout")):
        for part in (part for part in parts if part.title.startswith(title)):
            for row in (row for row in part.rows if row["row"] == name):
                regions = str(row.get("images", part.title.rpartition("; ")[2]))  # a column in older results
                levels = {f"level .{level}": cell({"": row}, "", f"PAvPU .{level}", 1) for level in ("01", "05", "10")}
                rows.append({"regions": regions, "row": name} | levels)
    return markdown_table(sorted(rows, key=lambda row: row["regions"])) if rows else "-"


def sizes(_: Mapping[str, Report]) -> str:
    """Return the files with published sizes, and what is in them."""
    rows = []
    for path in sorted(RESULTS.parent.glob("*/paper/*.yaml")):
        options = yaml.safe_load(path.read_text())
        shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
        rows.append({"file": f"`{path.relative_to(RESULTS.parents[1]).as_posix()}`", "options": shown})
    return markdown_table(rows)


def uncertainty(reports: Mapping[str, Report]) -> str:
    """Return the kinds of uncertainty of a classifier, a table a task; bold is what clearly differs from soft."""
    means, differences = reports["uncertainty-all-MiniLM-L6-v2"].parts[:2]
    clear = {
        (row["task"], row["row"], column)
        for row in differences.rows
        for column, entry in row.items()
        if isinstance(entry, Difference) and entry.bold
    }
    tables = list[str]()
    for task in dict.fromkeys(row["task"] for row in means.rows):
        rows = list[dict[str, str]]()
        for row in means.rows:
            if row["task"] == task:
                numbers = {
                    column: cell({"": row}, "", column, 3).partition(" ±")[0] for column in row if column != "task"
                }
                rows.append({
                    column: f"**{number}**" if (task, row["row"], column) in clear else number
                    for column, number in numbers.items()
                })  # fmt: skip
        tables.append(f"{task}:\n\n{markdown_table(rows)}")
    return "\n\n".join(tables)


TABLES = {
    "sizes": sizes,
    "pavpu": pavpu,
    "schemes": schemes,
    "k-max": k_max,
    "questions": questions,
    "readings": other_readings,
    "hybrid-shares": hybrid_shares,
    "uncertainty": uncertainty,
}


def filled(text: str, folder: Path = RESULTS) -> str:
    """Return the text of a page with its tables filled in.

    Raises:
        KeyError: A table of the page is unknown.
    """
    reports = {report.name: report for report, _ in results_in(folder)}
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]](reports)}\n\n{block[3]}", text)
