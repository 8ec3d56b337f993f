"""The rooms of docs/explanation/architecture.md: permitted imports between them, and the files of an installation."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    {"config", "nativebuild", "rpc"},
    {"switch", "results", "jobs"},
    {"host"},
    {"controller", "torch"},
    {"report"},
    {"web"},
    {"run"},
    {"sim", "doctor"},
    {"experiments"},
    {"cli"},
)
"""A room imports only rooms of lower floors."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}

AT_THE_TOP = {"controller", "host", "mininet", "p4src"}
"""Rooms beside kofn/, which has a link to each; all others are in kofn/."""

Arrow = tuple[str, str]
"""An import between two modules, as paths below the root without .py."""


@cache
def modules() -> dict[str, Path]:
    """Return the files by dotted name without "kofn."."""
    package = ROOT / "kofn"
    paths = (path for room in sorted(FLOOR) for path in sorted((package / room).rglob("*.py")))
    return {".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def arrows() -> list[Arrow]:
    """Return every import between modules of this repository."""
    found = []
    for name, path in modules().items():
        for target in imported(path):
            ours = target.removeprefix("kofn.")
            if ours != target:
                found += [(name, each) for each in (ours, ours.rpartition(".")[0]) if each in modules()][:1]
    return found


def test_imports_of_this_repository_begin_with_kofn() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()} - {"kofn", "mininet"}
    wrong = {
        f"{path.relative_to(ROOT)}: {target}"
        for path in modules().values()
        for target in imported(path)
        if target.split(".")[0] in folders
    }
    assert not wrong


def test_no_import_goes_to_a_higher_floor() -> None:
    wrong = {
        f"{source} -> {target}"
        for source, target in arrows()
        if (here := source.split(".")[0]) != (there := target.split(".")[0]) and FLOOR[there] >= FLOOR[here]
    }
    assert not wrong


@pytest.mark.parametrize("room", sorted(FLOOR))
def test_folders_of_a_room_have_no_import_cycle(room: str) -> None:
    """The folders of a room, and its files, import each other in one direction."""

    def box(module: str) -> str:
        parts = module.split(".")
        return ".".join(parts[:2]) if len(parts) > 1 else module

    graph: dict[str, set[str]] = defaultdict(set)
    for source, target in arrows():
        if source.split(".")[0] == target.split(".")[0] == room and box(source) != box(target):
            graph[box(source)].add(box(target))
    while leaves := {node for node in {*graph, *(n for nodes in graph.values() for n in nodes)} if not graph[node]}:
        graph = defaultdict(set, {node: targets - leaves for node, targets in graph.items() if node not in leaves})
    assert not graph, "folders must not import each other in a circle"


def test_switch_imports_only_the_native_build_of_kofn() -> None:
    others = {target.split(".")[0] for source, target in arrows() if source.split(".")[0] == "switch"}
    assert others == {"switch", "nativebuild"}


def test_pytorch_is_imported_by_its_room_and_by_plug_ins_only() -> None:
    users = {name for name, path in modules().items() if "torch" in {one.split(".")[0] for one in imported(path)}}
    assert {name for name in users if not name.startswith("torch.")} == {"host.workload.pytorch"}
    assert not [source for source, target in arrows() if target.startswith("torch") and not source.startswith("torch")]


def test_package_has_every_room() -> None:
    folders = {path for path in (ROOT / "kofn").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {path.name for path in folders} == {*FLOOR} | AT_THE_TOP
    assert {path.name: path.resolve() for path in folders if path.is_symlink()} == {
        name: ROOT / name for name in AT_THE_TOP
    }


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_at_most_ten_folders_stand_at_the_top() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.partition("/")[0] for path in tracked.split("\0") if "/" in path and not path.startswith(".")}
    assert len(folders) <= 10, folders


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_git_tracks_every_file_that_a_traceback_names() -> None:
    """Modules are loaded from their real place, not through the package's links."""
    named = "import importlib; print(*(importlib.import_module(name).__file__ for name in %r), sep='\\n')"
    names = [
        f"kofn.{name}" for name in modules() if name.split(".")[0] not in {"torch", "jobs"} and "__main__" not in name
    ]
    command = [sys.executable, "-c", named % names]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    known = subprocess.run(["git", "ls-files", *files], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {str(ROOT / path) for path in known.splitlines()} == {*files}


SHARED = {
    "Member": "of a job, and of a P4Runtime action profile",
    "Replica": "of a model, and of a P4Runtime multicast group",
    "Session": "of a job in the controller, and of a training in PyTorch",
    "TopologyError": "of one file, read by the controller, and by the network with the system's Python",
}
"""Class names used in two rooms, and why."""


def test_class_name_is_used_in_one_room() -> None:
    rooms = defaultdict[str, set[str]](set)
    for room in (*FLOOR, "mininet", "bench"):
        for path in (ROOT / ("" if room == "bench" else "kofn") / room).rglob("[!.]*.py"):
            if "_pb2" not in path.name:
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.ClassDef):
                        rooms[node.name].add(room)
    assert {each for each, where in rooms.items() if len(where) > 1} == set(SHARED)
