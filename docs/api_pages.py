"""Pages of the API reference, made from ``__all__`` of every module: each public name once, under its shortest path."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro_attention

__all__ = ["TOPICS", "Entry", "entries", "write"]


@dataclass(frozen=True)
class Entry:
    """A public name.

    Attributes:
        path: The shortest path by which it can be imported, such as ``pyro_attention.Weibull``.
        module: The module that defines it.
        value: What it names.
    """

    path: str
    module: str
    value: Any

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Topic:
    """A page of the reference: its title, what it says first, and the modules and packages whose names it holds.

    Internal pages are for those who write a family, a layer or a kernel.
    """

    title: str
    text: str
    modules: tuple[str, ...]
    internal: bool = False

    def holds(self, module: str) -> list[int]:
        """Places, among the modules of this page, of those in which a module lies."""
        inside = module.removeprefix("pyro_attention.")
        return [n for n, part in enumerate(self.modules) if inside == part or inside.startswith(f"{part}.")]

    def place(self, entry: Entry) -> tuple[int, str]:
        """Where on the page a name stands; names of one module stay in their order."""
        return self.holds(entry.module)[0], entry.module


TOPICS = {
    "schemes": Topic(
        "Schemes, and networks made Bayesian in one call",
        "A scheme is a prior, a posterior family and an objective that belong together.",
        ("schemes", "bayesian_network"),
    ),
    "layers": Topic(
        "Attention layers",
        "The layers declare the attention weights as sample sites of a Pyro model.",
        ("attention", "layers.multihead", "layers.graph", "layers", "attention_call"),
    ),
    "distributions": Topic(
        "Distributions over weights",
        "What the sites of attention hold, the bases of families and priors, and the networks that priors share.",
        ("families.base", "families.distribution", "families.key_network", "registry"),
        internal=True,
    ),
    "kernels": Topic(
        "Kernels of blocked attention",
        "Blocks of weights and their gradients, on a CPU and on a GPU; the layers call them.",
        ("blocked.ops", "blocked.distributions"),
        internal=True,
    ),
    "families": Topic(
        "Priors and posterior families",
        "A prior is a module that a layer holds; a posterior family is given to the guide. "
        "Each family stands in one module with its distribution, its prior and its posterior.",
        ("families.weibull", "families.lognormal", "families.gamma", "families.soft", "families"),
    ),
    "guide": Topic("Guide", "The guide replaces the prior of every attention site by a posterior.", ("guide",)),
    "objectives": Topic(
        "Objectives",
        "What training minimizes, schedules of the KL weight, and what a training refuses.",
        ("objectives.elbo", "objectives", "schedules"),
    ),
    "alignments": Topic(
        "Alignments",
        "Weights that are one key a query: distributions, likelihoods and an objective that sum over all alignments, "
        "and the exact posterior.",
        (
            "alignments.priors",
            "alignments.posteriors",
            "alignments.exact",
            "alignments.enumeration",
            "alignments.likelihoods",
            "alignments.node_likelihood",
            "alignments.summed",
            "alignments.base",
            "alignments",
        ),
    ),
    "layouts": Topic(
        "Layouts and normalizers",
        "Which query may attend to which key, and how positive numbers become weights.",
        ("layout", "edge_list", "normalizers", "over_queries"),
    ),
    "posterior": Topic(
        "Posterior samples and predictions",
        "What one does with a trained guide.",
        (
            "posterior.sampling",
            "posterior.sites",
            "posterior.predictive",
            "posterior.importance",
            "check",
            "draws",
            "replayed_runs",
            "posterior",
        ),
    ),
    "analysis": Topic(
        "Analysis of uncertainty",
        "These functions take plain tensors, so they serve any model.",
        ("analysis",),
    ),
    "aligner": Topic(
        "Word aligner",
        "Alignments of parallel text, and the probability of every link.",
        ("aligner.aligner", "aligner"),
    ),
    "viewer": Topic("Viewer", "Alignments and attention as a page that one looks at in a browser.", ("viewer",)),
    "plots": Topic("Plots", "Pictures of weights and calibration, each in one Axes of matplotlib.", ("plots",)),
    "blocked": Topic(
        "Blocked attention", "Bayesian attention in memory that grows as the length of the text.", ("blocked",)
    ),
    "integrations": Topic(
        "Integrations", "Models of other libraries made Bayesian, and results for ArviZ.", ("integrations",)
    ),
    "files": Topic(
        "Files",
        "Lines of text files, and files that are written whole or not at all, as the commands of this library do it.",
        ("text_lines", "atomic_write"),
        internal=True,
    ),
    "building_blocks": Topic(
        "Building blocks",
        "Pure tensor functions, for those who write a family or a layer of their own.",
        ("ops",),
        internal=True,
    ),
}


def public_modules() -> list[ModuleType]:
    """The package and its modules, but for those whose path has a leading underscore."""
    found = pkgutil.walk_packages(pyro_attention.__path__, "pyro_attention.")
    names = [module.name for module in found if not any(part.startswith("_") for part in module.name.split("."))]
    return [pyro_attention, *map(importlib.import_module, names)]


def defined_names(module: ModuleType) -> set[str]:
    """Names that a module defines itself at its top level: functions, constants, aliases of types."""
    names = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def entries() -> list[Entry]:
    """Every name that a public module lists in ``__all__``, once."""
    paths: dict[tuple[str, str], list[str]] = {}
    values: dict[tuple[str, str], Any] = {}
    constants: dict[str, str] = {}
    modules = public_modules()
    for module in modules:
        constants |= {f"{module.__name__}.{name}": module.__name__ for name in defined_names(module)}
    for module in modules:
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue  # it has a section of its own
            if inspect.isclass(value) or inspect.isroutine(value):
                home = value.__module__
            else:
                home = constants.get(f"{module.__name__}.{name}") or _home_of_constant(module, name, modules, constants)
            paths.setdefault((home, name), []).append(f"{module.__name__}.{name}")
            values[home, name] = value
    return [Entry(min(found, key=len), home, values[home, name]) for (home, name), found in paths.items()]


def _home_of_constant(module: ModuleType, name: str, modules: list[ModuleType], constants: Mapping[str, str]) -> str:
    """The module that assigns a constant which another one imports."""
    value = getattr(module, name)
    for other in modules:
        if f"{other.__name__}.{name}" in constants and getattr(other, name) == value:
            return other.__name__
    raise LookupError(f"no module assigns {name}, which {module.__name__} lists in __all__")


def topic_of(module: str) -> str:
    """The page on which the names of a module stand."""
    for slug, topic in TOPICS.items():
        if topic.holds(module):
            return slug
    raise LookupError(f"{module} belongs to no topic of the reference; add it to TOPICS in {Path(__file__).name}")


def pages() -> dict[str, str]:
    """The text of every page, in reStructuredText, by its name."""
    found = entries()
    texts = {}
    for slug, topic in TOPICS.items():
        own = sorted((entry for entry in found if topic_of(entry.module) == slug), key=topic.place)
        if own:
            texts[slug] = "\n".join([*_title(topic.title, "="), topic.text, "", *_sections(own)])
    return {"index": _index(texts, found), "all_names": _all_names(found), **texts}


def write(folder: Path) -> None:
    """Write the pages, and leave alone those that have not changed, so that a second build is quick."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.rst"
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _title(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def _index(slugs: Iterable[str], found: Iterable[Entry]) -> str:
    top = [entry for entry in found if entry.path.count(".") == 1]
    lines = [
        *_title("API reference", "="),
        "Most programs need the names at the top of the package, which are listed first. The pages below hold every "
        "public name under the shortest path by which it can be imported; they are made from the docstrings.",
        "",
        *_title("Names at the top of the package", "-"),
        *_name_list(top),
        "",
        *_title("Pages", "-"),
        *_toctree(["all_names", *(slug for slug in slugs if not TOPICS[slug].internal)]),
        *_title("Internals", "-"),
        "For those who write a family, a layer or a kernel of their own.",
        "",
        *_toctree(slug for slug in slugs if TOPICS[slug].internal),
    ]
    return "\n".join(lines)


def _all_names(found: Iterable[Entry]) -> str:
    return "\n".join([*_title("All names", "="), *_name_list(found), ""])


def _toctree(slugs: Iterable[str]) -> list[str]:
    return [".. toctree::", "   :maxdepth: 1", "", *(f"   {slug}" for slug in slugs), ""]


def _name_list(found: Iterable[Entry]) -> list[str]:
    return [_line(entry) for entry in sorted(found, key=lambda entry: entry.name.casefold())]


def _line(entry: Entry) -> str:
    """A name with its link and the first sentence of what it is."""
    plain = not (inspect.isclass(entry.value) or inspect.isroutine(entry.value))
    summary, *_ = (_constant(entry.value) if plain else inspect.getdoc(entry.value) or "").split("\n\n")
    return f"* :py:obj:`{entry.name} <{entry.path}>`: {' '.join(summary.split())}"


def _sections(own: list[Entry]) -> Iterator[str]:
    for module in dict.fromkeys(entry.module for entry in own):
        public = "._" not in module
        if public:
            yield from _title(module.removeprefix("pyro_attention."), "-")
            yield from (f".. automodule:: {module}", "   :no-members:", "   :no-index:", "")
        for entry in own:
            if entry.module == module:
                yield from _directive(entry)


def _directive(entry: Entry) -> Iterator[str]:
    if inspect.isclass(entry.value):
        yield from (f".. autoclass:: {entry.path}", "   :members:", "   :show-inheritance:", "")
    elif inspect.isroutine(entry.value):
        yield from (f".. autofunction:: {entry.path}", "")
    else:
        # an empty module, because the path has it already
        yield from (f".. py:data:: {entry.path}", "   :module:", "", f"   {_constant(entry.value)}", "")


def _constant(value: Any) -> str:
    """What a constant or a type alias is, in a sentence."""
    if typing.get_origin(value) is typing.Literal:
        return f"One of the words {', '.join(f'``{word}``' for word in typing.get_args(value))}."
    if isinstance(value, Mapping):
        return f"A registry, from names to classes: {', '.join(f'``{name}``' for name in sorted(value))}."
    if isinstance(value, str | int | float | tuple | frozenset):
        return f"The constant ``{value!r}``."
    if callable(getattr(value, "fn", None)):
        return f"A kernel that Triton compiles. {inspect.getdoc(value.fn)}".partition("\n")[0]
    if not isinstance(value, type) and typing.get_origin(value) is None:
        return f"A ``{type(value).__name__}`` that modules of the library share."
    return f"The type ``{str(value).replace('typing.', '')}``."
