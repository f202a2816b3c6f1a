"""Names for the members of an open set, such as posterior families."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(dict[str, T]):
    """Mapping from names to members that refuses duplicates and explains unknown names.

    Args:
        what: Noun for a member, for error messages.

    Example:
        >>> colors = Registry("color")
        >>> @colors.register("red")
        ... class Red: ...
        >>> colors["rad"]
        Traceback (most recent call last):
        ValueError: unknown color 'rad'; registered: red
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a member; it raises ValueError when the name is taken."""

        def add(member: T) -> T:
            if name in self:
                raise ValueError(f"{self.what} '{name}' is registered already, as {self[name]}")
            self[name] = member
            return member

        return add

    def __missing__(self, name: str) -> T:
        raise ValueError(f"unknown {self.what} '{name}'; registered: {', '.join(self)}")
