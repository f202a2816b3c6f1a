"""Finding the readers of data sets: every module of a package of readers registers what it reads."""

from importlib import import_module
from pkgutil import iter_modules

__all__ = ["import_readers"]


def import_readers(package: str) -> None:
    """Import every module of a package, so that its readers register themselves."""
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
