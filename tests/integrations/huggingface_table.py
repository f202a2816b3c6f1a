"""The table of families in docs/huggingface.md: ``python -m tests.integrations.huggingface_table`` writes it."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from pyro_attention import AttentionGuide, Soft
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.probe import probe, tensors
from tests.integrations.tiny_transformers import REFUSED, SUPPORTED, Family

DOCUMENT = Path(__file__).parents[2] / "docs" / "huggingface.md"
MARK = "<!-- The table is written by python -m tests.integrations.huggingface_table -->"


@dataclass(frozen=True)
class Row:
    """What a family does: modules and calls in one forward pass, and the largest difference at batch 1 and 8."""

    modules: int
    calls: int
    differences: tuple[float, float]
    scale: float  # the largest number of the outputs


def measure(family: Family) -> Row:
    """Convert a family and compare it with what it was, under the guide ``Soft()``."""
    model = family.make()
    batches = [family.batch(model, size) for size in (1, 8)]
    with torch.no_grad():
        before = [tensors(model(**batch)) for batch in batches]
        guide = AttentionGuide(bayesian(model), Soft())
        after = [tensors(guide.run(**batch, return_dict=True).output) for batch in batches]
    calls, _ = probe(model, batches[0])
    one, eight = (
        max((old[k] - new[k]).abs().max().item() for k in old) for old, new in zip(before, after, strict=True)
    )
    scale = max(tensor.abs().max().item() for old in before for tensor in old.values())
    return Row(len(calls), sum(call.count for call in calls.values()), (one, eight), scale)


def verdict(family: Family) -> str:
    """Why a family is refused, in a few words; the empty string where it is not."""
    try:
        bayesian(family.make())
    except ValueError as error:
        return "passes `s_aux`" if "s_aux" in str(error) else "no call" if "not once" in str(error) else str(error)
    return ""


def table() -> str:
    """All families as Markdown."""
    lines = [
        "| family | class | verdict | modules | calls | difference, batch 1 | batch 8 |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in SUPPORTED:
        row = measure(family)
        shown = " | ".join(f"{difference:.0e}" for difference in row.differences)
        lines.append(f"| {family.name} | {family.cls} | yes | {row.modules} | {row.calls} | {shown} |")
    lines += [f"| {family.name} | {family.cls} | refused: {verdict(family)} | - | - | - | - |" for family in REFUSED]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    return "\n".join([*lines, "", f"Measured with {versions}, in float32, on tiny random models."])


if __name__ == "__main__":
    head = DOCUMENT.read_text().partition(MARK)[0]
    DOCUMENT.write_text(f"{head}{MARK}\n\n{table()}\n")
