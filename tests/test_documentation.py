"""Every public name is listed in ``__all__``, says what it is and stands once in the API reference; examples hold."""

import dataclasses
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

import pyro_attention

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ["pyro_attention", *(module.name for module in pkgutil.walk_packages(pyro_attention.__path__, "pyro_attention."))]
)


def is_documented(owner, name, value):
    """Whether there is a docstring, or an entry among the attributes in that of the class."""
    if inspect.isclass(value):
        return bool(vars(value)["__doc__"])  # not an inherited one
    entry = f"    {name.split('.')[-1]}: "
    return bool(inspect.getdoc(value)) or any(entry in (base.__doc__ or "") for base in getattr(owner, "__mro__", ()))


def public_members(module):
    """Name, class and value of what the module lists, and of the methods and properties its classes define."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value, value
        if inspect.isclass(value) and value.__module__.startswith("pyro_attention"):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (
                    inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
                ):
                    yield f"{name}.{attribute}", value, getattr(value, attribute)


def test_every_module_lists_and_documents_what_is_public():
    assert {"pyro_attention.objectives.elbo", "pyro_attention.ops.segment"} <= set(MODULES)
    for name in MODULES:
        module = importlib.import_module(name)
        assert inspect.getdoc(module), name
        is_private = name.rpartition(".")[-1].startswith("_")
        if not hasattr(module, "__all__") and (hasattr(module, "__path__") or is_private):
            continue  # only its submodules hold anything, or nothing is public
        assert sorted(module.__all__) == sorted(set(module.__all__)), name
        assert all(hasattr(module, public) for public in module.__all__), name
        # nothing public is forgotten
        own = {
            public
            for public, value in vars(module).items()
            if not public.startswith("_") and getattr(value, "__module__", None) == name
            if inspect.isclass(value) or inspect.isroutine(value)
        }
        assert "." not in name or own <= set(module.__all__), name
        assert [one for one, owner, value in public_members(module) if not is_documented(owner, one, value)] == [], name


# The pages of the API reference

spec = importlib.util.spec_from_file_location("api_pages", ROOT / "docs" / "api_pages.py")
api_pages = importlib.util.module_from_spec(spec)
sys.modules["api_pages"] = api_pages
spec.loader.exec_module(api_pages)

PAGES = api_pages.pages()
LISTED = re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: (\S+)", "\n".join(PAGES.values()), re.M)
# What users import; the other modules hold what these are made of.
FOR_USERS = ("", ".analysis", ".schedules", ".viewer", ".integrations.huggingface", ".integrations.torch_nn")
# Bases of which one's own parts are derived: docs/how_to/own_family.md is their example.
BASES = {
    "AttentionDistribution", "Family", "Layout", "LogWeights", "Normalizer", "OneParameterFamily", "Prior", "View",
}  # fmt: skip


def test_every_public_name_stands_in_the_reference_once():
    assert sorted(LISTED) == sorted(set(LISTED))
    shown = [resolve_name(":".join(path.rsplit(".", 1))) for path in LISTED]
    things = [id(value) for value in shown if inspect.isclass(value) or inspect.isroutine(value)]
    assert len(things) == len(set(things))
    missing = [
        f"{module.__name__}.{name}"
        for module in api_pages.public_modules()
        for name in getattr(module, "__all__", [])
        if not inspect.ismodule(getattr(module, name)) and not any(getattr(module, name) is value for value in shown)
    ]
    assert missing == []
    assert len(PAGES) >= 10
    in_the_index = re.findall(r"^\* :py:obj:`\w+ <(\S+)>`: \S", PAGES["all_names"], re.M)
    assert sorted(in_the_index) == sorted(LISTED)
    at_the_top = re.findall(r"^\* :py:obj:`\w+ <pyro_attention\.(\S+)>`: \S", PAGES["index"], re.M)
    assert sorted(at_the_top) == sorted(pyro_attention.__all__)
    assert all("auto" in text for name, text in PAGES.items() if name != "index")
    # else Sphinx puts the module at hand before the path, and no link finds it
    assert not re.search(r"py:data:: \S+\n(?!   :module:\n)", "\n".join(PAGES.values()))
    with pytest.raises(LookupError, match="belongs to no topic"):
        api_pages.topic_of("pyro_attention.unheard_of")


@pytest.mark.parametrize("module", FOR_USERS)
def test_what_users_import_has_arguments_and_an_example(module):
    module = importlib.import_module(f"pyro_attention{module}")
    unsaid = []
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)) or name in BASES:
            continue
        text = inspect.getdoc(value)
        record = dataclasses.is_dataclass(value) and "Attributes:" in text  # its maker has the example
        exception = inspect.isclass(value) and issubclass(value, Exception)
        if not (record or exception or "Example:" in text):
            unsaid.append(f"{name} has no example")
        if has_arguments(value) and not re.search(r"Args:|Attributes:|Example:", text) and not exception:
            unsaid.append(f"{name} does not say its arguments")
    assert unsaid == []


def has_arguments(value):
    try:
        return bool([name for name in inspect.signature(value).parameters if name not in ("args", "kwargs", "options")])
    except ValueError:
        return False


# The examples outside the library, whose own are collected by pytest

WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("models", "guides", "experiments")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0
