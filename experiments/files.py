"""Errors that a user can put right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "user_errors"]


class UserError(Exception):
    """Something the user can put right; shown as one line, without a traceback."""


@contextmanager
def user_errors(*types: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these types into :class:`UserError`."""
    try:
        yield
    except types as error:
        raise UserError(str(error)) from error
