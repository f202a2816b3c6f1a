"""Every public name is listed in ``__all__`` and says what it is."""

import importlib
import inspect
import pkgutil

import pytest

import pyro_attention

MODULES = sorted(
    ["pyro_attention", *(module.name for module in pkgutil.walk_packages(pyro_attention.__path__, "pyro_attention."))]
)


def is_documented(owner, name, value):
    """Whether there is a docstring, or an entry among the attributes in that of the class."""
    if inspect.isclass(value):
        return bool(vars(value)["__doc__"])  # not an inherited one
    if inspect.getdoc(value):
        return True
    return inspect.isclass(owner) and any(
        f"    {name.split('.')[-1]}: " in (base.__doc__ or "") for base in owner.__mro__
    )


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


def test_the_walk_finds_the_package():
    assert {"pyro_attention.objectives.elbo", "pyro_attention.ops.segment"} <= set(MODULES)
    names = [name for name, _, _ in public_members(pyro_attention)]
    assert {"AttentionELBO.loss", "EdgeList.from_edge_index", "Weibull.posterior", "predict"} <= set(names)


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    if hasattr(module, "__path__") and not hasattr(module, "__all__"):
        return  # only its submodules hold anything
    assert isinstance(module.__all__, list)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)
    # nothing public is forgotten
    own = {
        public
        for public, value in vars(module).items()
        if not public.startswith("_") and getattr(value, "__module__", None) == name
        if inspect.isclass(value) or inspect.isroutine(value)
    }
    if "." in name:
        assert own <= set(module.__all__)
    undocumented = [
        member for member, owner, value in public_members(module) if not is_documented(owner, member, value)
    ]
    assert not undocumented
