"""Thin bridges to other libraries, each imported only where it is used."""

__all__: list[str] = []
