"""Who may import whom: arrows that point one way, no circle, no private names of others, no endless file.

``python -m tests.test_architecture`` prints how many boxes, arrows and levels there are.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pyro_attention

ROOT = Path(__file__).parents[1]
PACKAGES = ("pyro_attention", "models", "guides", "experiments")
LONGEST = 600  # lines of a file
MOST_NAMES = 46  # at the top of the library
LONGEST_LAUNCHER = 40  # of a command beside the packages of experiments

# A box is one of these packages, a package inside experiments, one of its shared modules, or "commands":
# the other modules beside those packages.
LIBRARY = {"pyro_attention": set(), "models": {"pyro_attention"}, "guides": {"pyro_attention"}}
TASKS = {
    "graph",
    "nmt",
    "captioning",
    "pretrain",
    "finetune",
    "mode_collapse",
    "vqa",
    "headlines",
    "coverage",
    "reasons",
    "neural_process",
    "aligners",
    "uncertainty",
}
TRAINING = ("options", "cli", "folder", "parallel", "callbacks", "training")  # modules of experiments, below run
STUDY = ("study", "convergence", "normalizer_report")  # modules of experiments, above run
SHARED = {"files", "run", "study"}
TASK = {*LIBRARY, *SHARED, "training", "report", "data"}
ALLOWED = LIBRARY | {
    "files": {*LIBRARY},
    "report": {*LIBRARY, "files"},
    "training": {*LIBRARY, "files", "report"},
    "data": {*LIBRARY, "files"},
    "run": {"files", "report", "training"},
    "study": {"files", "report", "run", "training", "data"},
    "sequence": TASK,
    "graph": TASK,
    "nmt": TASK | {"sequence", "aligners"},
    "aligners": TASK,
    "captioning": TASK | {"sequence"},
    "pretrain": TASK | {"sequence"},
    "finetune": TASK | {"sequence"},
    "mode_collapse": TASK,
    "coverage": TASK,
    "reasons": TASK,
    "neural_process": TASK,
    "uncertainty": TASK | {"finetune"},
    "vqa": TASK,
    "headlines": TASK | {"sequence"},
    "benchmarks": TASK,
    "commands": {"files", "report", "training", *TASKS},
}
MOST_ARROWS, MOST_LEVELS = 34, 9  # out of the shared modules and packages of experiments; a task may use all of these
CORE = ("attention", "guide", "families", "objectives", "layout", "normalizers", "layers", "posterior", "alignments")


# What the source says


@cache
def modules() -> dict[str, ast.Module]:
    """The tree of every module, by its dotted name."""
    found = {}
    for path in [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def package_of(name: str) -> str:
    """The package that a module lies in; a package lies in itself."""
    return name if any(other.startswith(f"{name}.") for other in modules()) else name.rpartition(".")[0]


@cache
def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from at_run_time(child)


def imports(name: str, *, for_types: bool = True) -> list[tuple[str, str]]:
    """Modules of ours that a module imports, inside functions too, and the name that it takes from each, or "".

    Without ``for_types``, what stands below ``if TYPE_CHECKING`` does not count: nothing is imported there at run time.
    """
    found = []
    for node in ast.walk(modules()[name]) if for_types else at_run_time(modules()[name]):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import in line {node.lineno}; expected an absolute one"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole, "") if whole in modules() else (str(node.module), alias.name))
    return [(other, taken) for other, taken in found if other in modules()]


def box(name: str) -> str:
    package, *rest = name.split(".")
    if package != "experiments" or not rest:
        return package
    if rest[0] in TRAINING:
        return "training"
    if rest[0] in STUDY:
        return "study"
    return rest[0] if rest[0] in SHARED or (ROOT / "experiments" / rest[0]).is_dir() else "commands"


@cache
def arrows() -> dict[tuple[str, str], list[str]]:
    """The imports behind every arrow from a box to another one."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in modules():
        for other, _ in imports(name):
            if box(name) != box(other):
                found.setdefault((box(name), box(other)), []).append(f"{name} imports {other}")
    return found


def shared_arrows() -> list[tuple[str, str]]:
    """The arrows that leave what the tasks share, without those to the library."""
    own = {*LIBRARY, *TASKS, "benchmarks", "commands"}
    return [arrow for arrow in arrows() if arrow[0] not in own and arrow[1] not in LIBRARY]


def levels(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """The level of every node, one above the highest that it points to.

    Raises:
        CycleError: There is a circle.
    """
    found: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        found[node] = 1 + max((found[other] for other in graph.get(node, ())), default=0)
    return found


def box_graph() -> dict[str, set[str]]:
    boxes = {box(name) for name in modules()} - {"experiments"}
    return {one: {other for first, other in arrows() if first == one} for one in boxes}


def module_graph() -> dict[str, set[str]]:
    return {name: {other for other, _ in imports(name, for_types=False)} for name in modules()}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_parts(dotted: str) -> Iterator[str]:
    """The packages whose private module or name stands in a dotted path."""
    parts = dotted.split(".")
    for place, part in enumerate(parts):
        if is_private(part):
            yield package_of(".".join(parts[:place]))


def inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def foreign_private_names(module: str) -> Iterator[str]:
    """Private names of another package that a module imports."""
    for other, taken in imports(module):
        for home in private_parts(f"{other}.{taken}"):
            if not inside(module, home):
                yield f"{module} imports {taken or other} of {home}"


# What must hold


@pytest.mark.parametrize("name", ALLOWED)
def test_a_box_imports_only_what_it_may(name):
    assert {arrow: why for arrow, why in arrows().items() if arrow[0] == name and arrow[1] not in ALLOWED[name]} == {}


@pytest.mark.parametrize("graph", [module_graph, box_graph], ids=["modules", "boxes"])
def test_nothing_imports_itself_through_others(graph):
    try:
        levels(graph())
    except CycleError as error:
        pytest.fail("a circle: " + " <- ".join(error.args[1]))


def test_every_box_is_known_and_there_are_few_arrows_and_levels():
    assert box_graph().keys() == ALLOWED.keys()
    assert len(shared_arrows()) <= MOST_ARROWS
    assert max(levels(box_graph()).values()) <= MOST_LEVELS


def test_the_core_reads_without_blocked_attention():
    for core in CORE:
        names = [name for name in modules() if inside(name, f"pyro_attention.{core}")]
        assert names
        assert [pair for name in names for pair in imports(name) if inside(pair[0], "pyro_attention.blocked")] == []


def test_the_library_has_few_names_at_its_top():
    assert len(pyro_attention.__all__) <= MOST_NAMES


def test_private_names_stay_in_their_package():
    assert [use for module in modules() for use in foreign_private_names(module)] == []


def test_no_file_is_too_long_and_commands_beside_the_packages_only_launch():
    launchers = {(ROOT / name.replace(".", "/")).with_suffix(".py") for name in modules() if box(name) == "commands"}
    for path in [path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= (LONGEST_LAUNCHER if path in launchers else LONGEST), path


def test_circles_are_found():
    assert levels({"a": {"b", "c"}, "b": {"c"}}) == {"c": 1, "b": 2, "a": 3}
    with pytest.raises(CycleError):
        levels({"a": {"b"}, "b": {"a"}})


if __name__ == "__main__":
    print(f"{len(box_graph())} boxes, {len(shared_arrows())} arrows out of what tasks share, {len(arrows())} in all")
    for height, name in sorted((height, name) for name, height in levels(box_graph()).items()):
        print(f"level {height}: {name} -> {', '.join(sorted(box_graph()[name])) or 'nothing'}")
