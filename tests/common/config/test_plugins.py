"""Names of plug-ins: each shipped one is a file, and nothing is imported before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from kofn_common.config import plugins
from kofn_common.config.errors import ConfigError
from kofn_common.config.objectives import OBJECTIVES
from kofn_common.config.plugins import CODECS, COLLECTIVES, STRAGGLERS, WORKLOADS, Registry, in_words

ROOT = Path(__file__).parents[3]
REGISTRIES = (CODECS, COLLECTIVES, OBJECTIVES, STRAGGLERS, WORKLOADS)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_shipped_plug_ins_load(registry: Registry) -> None:
    assert registry.built_in
    for name in registry.built_in:
        registry.check(name, "here")
        registry.load(name)
    given = {module for names in registry.several.values() for module in names} | {*registry.built_in}
    assert given == {*registry.built_in}


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_further_file_is_a_further_name(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / registry.folders[-1]
    folder.mkdir(parents=True)
    (folder / "fresh.py").write_text("fresh = 5")
    monkeypatch.setattr(plugins, "folder_of", tmp_path.joinpath)
    plugins._stems.cache_clear()
    assert "fresh" in registry.names
    entry = registry.find("fresh")
    assert entry is not None and entry.value == f"{registry.folders[-1].replace('/', '.')}.fresh:fresh"
    plugins._stems.cache_clear()


def test_names_are_known_without_loading_anything() -> None:
    code = (
        "import sys; from kofn_common.config.schema import Config; Config().check();"
        "print([name for name in sys.modules if name.startswith(('numpy', 'kofn_host', 'kofn_controller'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["", "x", ":", "a:", ":b", "a b:c", "a:b:c", "a:b.c", "1a:b", "../a:b", "mesh"])
def test_error_for_an_invalid_name_lists_the_names(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        COLLECTIVES.check(name, "job.collective")
    assert f"must be {', '.join(COLLECTIVES.built_in)} or module:Name, got" in str(raised.value)


def test_module_of_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_numbers.py").write_text("five = 5")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert WORKLOADS.load("my_numbers:five") == 5
    assert sys.path[0] == str(tmp_path)
    WORKLOADS.load("my_numbers:five")
    assert sys.path.count(str(tmp_path)) == 1
    with pytest.raises(ConfigError, match="workload 'my_numbers:six' cannot be loaded: AttributeError"):
        WORKLOADS.load("my_numbers:six")
    with pytest.raises(ConfigError, match=rf"No module named 'my_number' \(looked for in .*{tmp_path}") as raised:
        WORKLOADS.load("my_number:five")
    assert str(raised.value).count(str(tmp_path)) == 1
    (tmp_path / "needs.py").write_text("import gone")
    with pytest.raises(ConfigError, match=rf"No module named 'gone' \({tmp_path}/needs\.py:1\)$"):
        WORKLOADS.load("needs:five")


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_installed_package_adds_a_name(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text("five = 5")
    (tmp_path / "my_package-1.dist-info").mkdir()
    metadata = tmp_path / "my_package-1.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    shipped = registry.built_in[0]
    (metadata / "entry_points.txt").write_text(
        f"[{registry.group}]\nmine = my_package:five\n{shipped} = my_package:five\n7 = my_package:five\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names == (*registry.built_in, "mine")
    assert registry.load("mine") == 5
    assert registry.load(shipped) != 5, "a registration must not replace a built-in"


USERS = """
import json

def costs(text):
    return decoded(text)

def decoded(text):
    return json.loads(text)

NUMBER = costs("x")
"""


def test_error_in_a_users_module_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is the user's deepest line, although Python's own module raised the error."""
    (tmp_path / "users_costs.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    place = rf"JSONDecodeError: Expecting value: .* \({tmp_path}/users_costs\.py:8\)$"
    with pytest.raises(ConfigError, match=place):
        OBJECTIVES.load("users_costs:costs")
    with pytest.raises(ConfigError, match=r"No module named 'no_costs' \(looked for in "):
        OBJECTIVES.load("no_costs:costs")
    assert in_words(ValueError("no")) == "ValueError: no"
