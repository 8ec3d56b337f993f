"""The C files of a folder call each other in one direction."""

import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from kofn_common.nativebuild.library import compiler_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
WIRE = ROOT / "common" / "kofn_common" / "wire"
FOLDERS = [
    ROOT / "host" / "kofn_host" / "protocol",
    ROOT / "host" / "kofn_host" / "compression",
    ROOT / "host" / "kofn_host" / "engine",
    ROOT / "switch" / "kofn_switch" / "runtime",
    ROOT / "kofn" / "sim",
]
HOST = FOLDERS[:3]


def symbols(source: Path, include: list[Path], folder: Path) -> tuple[set[str], set[str]]:
    """Return the symbols that a compiled C file defines, and those that it needs."""
    compiled = folder / f"{source.stem}.o"
    search = [f"-I{each}" for each in include]
    subprocess.run(
        [*compiler_command(), "-std=gnu11", "-D_GNU_SOURCE", *search, "-c", "-o", str(compiled), str(source)],
        check=True,
    )
    listed = subprocess.run(["nm", "-gP", str(compiled)], check=True, capture_output=True, text=True).stdout
    kinds = dict(line.split()[:2] for line in listed.splitlines())
    needed = {name for name, kind in kinds.items() if kind == "U"}
    return set(kinds) - needed, needed


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not on the PATH")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "/".join(folder.parts[-2:]))
def test_c_files_call_each_other_in_one_direction(folder: Path, tmp_path: Path) -> None:
    include = [folder] if folder.name == "runtime" else [WIRE, *HOST, folder]
    found = {source.name: symbols(source, include, tmp_path) for source in sorted(folder.glob("*.c"))}
    calls = {
        name: {other for other, (defined, _) in found.items() if other != name and needed & defined}
        for name, (_, needed) in found.items()
    }
    TopologicalSorter(calls).prepare()  # CycleError names a circle
