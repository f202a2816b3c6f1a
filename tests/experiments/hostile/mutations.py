"""Files that were whole and are damaged: cut off, with bits flipped, with other bytes in front, inside or behind."""

import random
from collections.abc import Iterator

CUTS = 12
FLIPS = 16


def mutations(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of damaged copies; the same ones for the same content."""
    size, chosen = len(content), random.Random(0)
    for part in range(1, CUTS):
        yield f"cut off after {part} of {CUTS}", content[: size * part // CUTS]
    for number in range(FLIPS):
        place, bit = chosen.randrange(size), chosen.randrange(8)
        yield f"flip {number}", content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
    for name, block in (("zeros", bytes(9)), ("ones", b"\xff" * 9), ("markup", b"<b>&amp;</b>"), ("deep", b"[" * 9000)):
        place = chosen.randrange(size)
        yield f"{name} inside", content[:place] + block + content[place + len(block) :]
    yield "a byte order mark", b"\xef\xbb\xbf" + content
    yield "twice", content + content
    yield "empty", b""
    yield "a zero byte", b"\0"
    yield "zeros alone", bytes(size)
