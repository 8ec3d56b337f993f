"""The switch's own distribution has every package of the switch, and no other package of kofn."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SWITCH = ROOT / "kofn" / "switch"
ALONE = tomllib.loads((SWITCH / "pyproject.toml").read_text())
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_distribution_has_every_package_of_the_switch() -> None:
    folders = [path.parent.relative_to(SWITCH) for path in SWITCH.rglob("__init__.py")]
    packages = {".".join(["kofn", "switch", *folder.parts]) for folder in folders}
    assert set(ALONE["tool"]["setuptools"]["packages"]) == packages | {"kofn.nativebuild"}


def test_distribution_has_the_version_and_python_of_the_whole() -> None:
    for key in ("version", "requires-python"):
        assert ALONE["project"][key] == WHOLE["project"][key]
    assert set(ALONE["project"]["dependencies"]) <= set(WHOLE["project"]["dependencies"])
