"""Names for the members of an open set, such as posterior families."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to classes that refuses duplicates and explains unknown names.

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
        self.what = what
        self._members: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a member; ValueError when the name is taken."""

        def add(member: T) -> T:
            if name in self._members:
                raise ValueError(f"{self.what} '{name}' is registered already, as {self._members[name]}")
            self._members[name] = member
            return member

        return add

    def __getitem__(self, name: str) -> T:
        if name in self._members:
            return self._members[name]
        close = difflib.get_close_matches(name, self._members, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ValueError(f"unknown {self.what} '{name}'{hint} Registered: {', '.join(self._members)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members
