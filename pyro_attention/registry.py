"""Names for the members of an open set, such as posterior families."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dict from names to members that refuses duplicates and explains unknown names.

    Args:
        what: What the members are, for error messages.

    Example:
        >>> colours = Registry("colour")
        >>> @colours.register("red")
        ... class Red: ...
        >>> colours["rad"]
        Traceback (most recent call last):
        ValueError: unknown colour 'rad'; did you mean 'red'? Registered: red
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a member; ValueError when the name is taken."""

        def add(member: T) -> T:
            if name in self:
                raise ValueError(f"{self.what} '{name}' is registered already, as {self[name]}")
            self[name] = member
            return member

        return add

    def __missing__(self, name: str) -> T:
        close = difflib.get_close_matches(name, self, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ValueError(f"unknown {self.what} '{name}'{hint} Registered: {', '.join(self)}")
