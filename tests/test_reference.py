"""The pages of the API reference hold every public name once, and each says what a reader needs."""

import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

PATH = Path(__file__).parents[1] / "docs" / "api_pages.py"
spec = importlib.util.spec_from_file_location("api_pages", PATH)
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


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return resolve_name(f"{module}:{name}")


def test_every_public_name_stands_there_once():
    assert sorted(LISTED) == sorted(set(LISTED))
    shown = [found(path) for path in LISTED]
    things = [id(value) for value in shown if inspect.isclass(value) or inspect.isroutine(value)]
    assert len(things) == len(set(things))
    missing = [
        f"{module.__name__}.{name}"
        for module in api_pages.public_modules()
        for name in getattr(module, "__all__", [])
        if not inspect.ismodule(getattr(module, name)) and not any(getattr(module, name) is value for value in shown)
    ]
    assert missing == []


def test_every_topic_has_names():
    assert len(PAGES) >= 10
    assert all("auto" in text for name, text in PAGES.items() if name != "index")


def test_a_module_without_a_topic_is_refused():
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


def has_arguments(value: object) -> bool:
    try:
        return bool([name for name in inspect.signature(value).parameters if name not in ("args", "kwargs", "options")])
    except ValueError:
        return False
