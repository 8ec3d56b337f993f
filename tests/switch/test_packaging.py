"""The switch as a distribution of its own: it has every package of the switch, and nothing of the rest of kofn."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SWITCH = ROOT / "kofn" / "switch"
ALONE = tomllib.loads((SWITCH / "pyproject.toml").read_text())
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_is_in_it() -> None:
    folders = [path.parent.relative_to(SWITCH) for path in SWITCH.rglob("__init__.py")]
    packages = {".".join(["kofn", "switch", *folder.parts]) for folder in folders}
    assert set(ALONE["tool"]["setuptools"]["packages"]) == packages | {"kofn.nativebuild"}


def test_it_is_described_as_the_whole_is() -> None:
    for key in ("version", "requires-python"):
        assert ALONE["project"][key] == WHOLE["project"][key]
    assert set(ALONE["project"]["dependencies"]) <= set(WHOLE["project"]["dependencies"])
