"""What blocked attention over a ring of devices would hold and send, computed and not measured.

python -m experiments.benchmarks.ring_attention
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.ring_attention",
        "experiments.benchmarks.config:RingConfig",
        "experiments.benchmarks.ring_attention:run",
    )

from dataclasses import dataclass

from experiments.benchmarks.config import RingConfig
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.report.tables import markdown_table

__all__ = ["Ring", "run", "section"]

SCRIPT = "experiments.benchmarks.ring_attention"
_FLOAT, _INT = 4, 4  # bytes


@dataclass(frozen=True)
class Ring:
    """One layer on one sequence: each device has a block of the positions, and keys and values go round.

    Everything is in bytes, of one device; gradients are summed in float32.

    Example:
        >>> ring = Ring(positions=1024, devices=4, heads=2, width=8, itemsize=2)
        >>> ring.block, ring.vectors, ring.forward_traffic
        (256, 8192, 49152)
    """

    positions: int
    devices: int
    heads: int
    width: int
    itemsize: int  # bytes of a number of queries, keys and values

    @property
    def block(self) -> int:
        """Positions of a device."""
        return self.positions // self.devices

    @property
    def vectors(self) -> int:
        """Queries of a device; keys or values are as many."""
        return self.block * self.heads * self.width * self.itemsize

    @property
    def gradients(self) -> int:
        """Gradients of the queries of a device."""
        return self.block * self.heads * self.width * _FLOAT

    @property
    def kept(self) -> int:
        """From forward to backward: queries, keys, values, context, and two log-sum-exps of each row."""
        return 4 * self.vectors + 2 * self.block * self.heads * _FLOAT

    @property
    def in_backward(self) -> int:
        """More in backward: keys and values with their gradients, those in use and those that arrive; two gradients."""
        passing = 2 * (2 * self.vectors + 2 * self.gradients)
        return passing + self.vectors + self.gradients  # of the context and of the queries

    @property
    def noise(self) -> int:
        """What the noise of a block is made from: two numbers of each row, and one of each column that is here."""
        return (2 * self.heads + 1) * self.block * _INT

    @property
    def held_noise(self) -> float:
        """The noise of the device's queries, if it were held."""
        return self.heads * self.block * self.positions * _FLOAT

    @property
    def forward_traffic(self) -> int:
        """Sent in forward: keys and values, to each other device."""
        return (self.devices - 1) * 2 * self.vectors

    @property
    def backward_traffic(self) -> int:
        """Sent in backward: keys and values once more, and their gradients, which return to where they belong."""
        return self.forward_traffic + self.devices * 2 * self.gradients

    @property
    def kl_traffic(self) -> int:
        """Sent for the KL from a Gamma prior: sums over the queries, and over their log-sum-exps."""
        return self.heads * (self.width + 1) * _FLOAT

    @property
    def operations_per_byte(self) -> float:
        """Operations of the products of one block with another by the bytes sent meanwhile, the lower of both passes.

        There are two products in forward and five in backward.
        """
        product = 2 * self.block**2 * self.heads * self.width
        return min(2 * product / (2 * self.vectors), 5 * product / (2 * self.vectors + 2 * self.gradients))


def run(config: RingConfig) -> None:
    """Print the table."""
    print(section(config))


def section(config: RingConfig) -> str:
    """The table in Markdown, with the command that makes it.

    Raises:
        UserError: The devices cannot share the positions out evenly.
    """
    uneven = next((number for number in config.devices if config.positions % number), None)
    if uneven is not None:
        raise UserError(f"positions is {config.positions}, which {uneven} devices cannot share evenly; choose another")
    rings = [
        Ring(config.positions, number, config.heads, config.width, itemsize=2 if config.half else 4)
        for number in config.devices
    ]
    cells = {
        "positions of a device": [f"{ring.block}" for ring in rings],
        "kept from forward to backward": [_size(ring.kept) for ring in rings],
        "more in backward": [_size(ring.in_backward) for ring in rings],
        "what the noise is made from": [_size(ring.noise) for ring in rings],
        "the noise, if it were held": [_size(ring.held_noise) for ring in rings],
        "sent in forward": [_size(ring.forward_traffic) for ring in rings],
        "sent in backward": [_size(ring.backward_traffic) for ring in rings],
        "sent for the KL": [_size(ring.kl_traffic) for ring in rings],
        "operations for each byte sent, at least": [f"{ring.operations_per_byte:.0f}" for ring in rings],
    }
    heads = [f"{ring.devices} devices" for ring in rings]
    table = markdown_table(
        [{"of each device": name, **dict(zip(heads, found, strict=True))} for name, found in cells.items()]
    )
    precision = "half precision" if config.half else "float32"
    return (
        f"`{command_line(SCRIPT, config)}`: one layer of {config.heads} heads of width {config.width} on one sequence "
        f"of {config.positions} positions, queries, keys and values in {precision}. Computed, not measured.\n\n{table}"
    )


def _size(count: float) -> str:
    """Bytes with three digits."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.3g} {units[0]}"
