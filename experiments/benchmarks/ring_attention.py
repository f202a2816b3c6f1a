"""What blocked attention over a ring of devices would hold and send, computed and not measured."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("ring_attention", "RingConfig")

from dataclasses import dataclass

from experiments.benchmarks.config import RingConfig
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.report.tables import markdown_table

FLOAT, INT = 4, 4  # bytes


@dataclass(frozen=True)
class Ring:
    """One layer on one sequence: each device has a block of the positions, and keys and values go round.

    Example:
        >>> found = Ring(positions=1024, devices=4, heads=2, width=8, itemsize=2).numbers()
        >>> found["positions of a device"], found["sent in forward"]
        (256, 49152)
    """

    positions: int
    devices: int
    heads: int
    width: int
    itemsize: int  # bytes of a number of queries, keys and values

    def numbers(self) -> dict[str, float]:
        """What one device holds and sends, in bytes; gradients are summed in float32."""
        block = self.positions // self.devices
        vectors = block * self.heads * self.width * self.itemsize  # queries; keys or values are as many
        gradients = block * self.heads * self.width * FLOAT  # of the queries
        product = 2 * block**2 * self.heads * self.width  # operations
        sent = (self.devices - 1) * 2 * vectors  # keys and values, to each other device
        return {
            "positions of a device": block,
            # queries, keys, values, context, and two log-sum-exps of each row
            "kept from forward to backward": 4 * vectors + 2 * block * self.heads * FLOAT,
            # keys and values with their gradients, those in use and those that arrive; gradients of context and queries
            "more in backward": 2 * (2 * vectors + 2 * gradients) + vectors + gradients,
            # two numbers of each row, and one of each column that is here
            "what the noise is made from": (2 * self.heads + 1) * block * INT,
            "the noise, if it were held": self.heads * block * self.positions * FLOAT,
            "sent in forward": sent,
            # keys and values once more, and their gradients, which return to where they belong
            "sent in backward": sent + self.devices * 2 * gradients,
            # from a Gamma prior: sums over the queries, and over their log-sum-exps
            "sent for the KL": self.heads * (self.width + 1) * FLOAT,
            # of one block with another: two products in forward and five in backward
            "operations for each byte sent, at least": min(
                2 * product / (2 * vectors), 5 * product / (2 * vectors + 2 * gradients)
            ),
        }


def run(config: RingConfig) -> None:
    """Print the table in Markdown, with the command that makes it.

    Raises:
        UserError: The devices cannot share the positions out evenly.
    """
    found = {}
    for devices in config.devices:
        if config.positions % devices:
            raise UserError(f"positions is {config.positions}, which {devices} devices cannot share evenly")
        ring = Ring(config.positions, devices, config.heads, config.width, itemsize=2 if config.half else 4)
        found[f"{devices} devices"] = ring.numbers()
    names = next(iter(found.values()))
    rows = [{"of each device": name, **{head: _cell(name, one[name]) for head, one in found.items()}} for name in names]
    precision = "half precision" if config.half else "float32"
    print(
        f"`{command_line('experiments.benchmarks.ring_attention', config)}`: one layer of {config.heads} heads of "
        f"width {config.width} on one sequence of {config.positions} positions, queries, keys and values in "
        f"{precision}. Computed, not measured.\n\n{markdown_table(rows)}"
    )


def _cell(name: str, count: float) -> str:
    """A count, or bytes with three digits."""
    if name.startswith(("positions", "operations")):
        return f"{count:.0f}"
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.3g} {units[0]}"
