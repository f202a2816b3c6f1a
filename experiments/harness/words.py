"""What error messages say of an unknown word; nothing heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "expected_one_of"]


def did_you_mean(words: Iterable[str], given: str) -> str:
    """The end of an error message: the word with these initials, or the nearest one; nothing when none is near.

    Example:
        >>> did_you_mean(["soft", "weibull"], "weibul")
        "; did you mean 'weibull'?"
    """
    words = list(words)
    short = [word for word in words if "".join(re.findall(r"(?<![a-z])[a-z]", word)) == given.lstrip("-")]
    near = short or get_close_matches(given, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def expected_one_of(words: Iterable[str], given: str) -> str:
    """What an error message says about an unknown word: the words that are known, and the nearest of them.

    Example:
        >>> expected_one_of(["soft", "weibull"], "weibul")
        "expected one of soft, weibull; did you mean 'weibull'?"
    """
    words = list(words)
    return f"expected one of {', '.join(words)}{did_you_mean(words, given)}"
