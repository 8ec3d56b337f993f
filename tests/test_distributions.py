"""Each distribution is built, installed alone with what it declares, imported whole, and used.

The environments are empty but for the wheels and links to the declared packages of this one, so nothing is downloaded.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kofn_common.extras import EXTRAS
from tests.workspace import FOLDERS, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout"),
]

DISTRIBUTIONS = {**FOLDERS, "kofn_p4src": "p4src", "kofn_mininet": "mininet"}

ROOMS = {
    "kofn_common": "common",
    "kofn_switch": "switch",
    "kofn_host": "host",
    "kofn_controller": "controller",
    "kofn_jobs": "jobs",
}
"""Packages whose tests need nothing else; PyTorch's and the testbed's need workers, switch and controller together."""

OF_A_CHECKOUT = {"LICENSE", "README.md", "pyproject.toml", "rpc/kofn.proto", "run/setup.sh"}
"""Files beside the modules that an installation does without."""

OWN = ("run", "host", "config", "controller", "sim", "switch", "report", "results", "rpc", "cli")
"""Names of a user's own modules; importing one of them by mistake fails."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files, since a build writes into its folder."""
    folder = tmp_path_factory.mktemp("a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheels(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return each package's wheel, which is built from its sdist."""
    sdists, made = tmp_path_factory.mktemp("sdists"), tmp_path_factory.mktemp("wheels")
    _build("sdist", [checkout / folder for folder in DISTRIBUTIONS.values()], sdists)
    sources = []
    for package in DISTRIBUTIONS:
        (sdist,) = sdists.glob(f"{package}-*.tar.gz")
        shutil.unpack_archive(sdist, sdists)
        sources.append(sdists / sdist.name.removesuffix(".tar.gz"))
    _build("wheel", sources, made)
    return {package: next(made.glob(f"{package}-*.whl")) for package in DISTRIBUTIONS}


BUILD = """
import os, sys
import setuptools.build_meta as backend
build, to, *sources = sys.argv[1:]
for source in sources:
    if not os.fork():
        os.chdir(source)
        getattr(backend, build)(to)
        sys.exit()
    if os.wait()[1]:
        sys.exit(f"{source} cannot be built")
"""
"""Builds each source in a process of its own, which need not load setuptools again."""


def _build(kind: str, sources: list[Path], to: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, f"build_{kind}", to, *sources], check=True, capture_output=True)


@pytest.fixture(scope="module")
def environment(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> "Environment":
    """Return a new environment with one package, all its extras, and what tests of its room need."""
    return Environment(tmp_path_factory.mktemp(request.param), request.param, wheels)


class Environment:
    """A virtual environment with the package, and with what it declares."""

    def __init__(self, folder: Path, package: str, wheels: dict[str, Path]) -> None:
        self.package = package
        self._folder = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self._folder], check=True)
        (self.site,) = self._folder.glob("lib/python*/site-packages")
        project = tomllib.loads((ROOT / DISTRIBUTIONS[package] / "pyproject.toml").read_text())
        wanted = [f"{package}[{','.join(project['project'].get('optional-dependencies', ()))}]"]
        self.own, others = _needed([*wanted, *project.get("dependency-groups", {}).get("test", ())])
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.program("python")]
        own = [wheels[name.replace("-", "_")] for name in self.own]
        subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", *own], check=True, capture_output=True)
        for name in others:
            self._link(metadata.distribution(name))

    def program(self, name: str) -> str:
        return str(self._folder / "bin" / name)

    def run(self, *command: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, which must succeed."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
        name, *words = command
        run = subprocess.run(
            [self.program(str(name)) if name != "bash" else "bash", *words],
            cwd=cwd,
            env={
                **variables,
                "KOFN_STATE_DIR": str(cwd / "state"),
                "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        return run

    def _link(self, distribution: metadata.Distribution) -> None:
        """Link the files of a package of this environment; a folder that several may share is made."""
        files = [file for file in distribution.files or () if file.parts[0] != ".." and file.suffix != ".pyc"]
        packages = {file.parts[0] for file in files if file.parts[1:] == ("__init__.py",)}
        for path in {Path(*file.parts[: 1 if file.parts[0] in packages else 2]) for file in files}:
            (self.site / path).parent.mkdir(exist_ok=True)
            if not (self.site / path).exists():
                (self.site / path).symlink_to(Path(str(distribution.locate_file(path))).resolve())


def _needed(wanted: list[str]) -> tuple[list[str], list[str]]:
    """Return kofn's distributions that requirements lead to, and the others, if they are installed here."""
    found: dict[tuple[str, str], None] = {}
    queue = [(Requirement(each), extra) for each in wanted for extra in ("", *Requirement(each).extras)]
    while queue:
        requirement, extra = queue.pop()
        key = (requirement.name.lower().replace("_", "-"), extra)
        if key in found or not _installed(key[0]):
            continue
        found[key] = None
        for line in metadata.requires(key[0]) or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                queue += [(inner, each) for each in ("", *inner.extras)]
    names = sorted({name for name, _ in found})
    return [name for name in names if name.startswith("kofn")], [name for name in names if not name.startswith("kofn")]


@cache
def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in sys.argv[2:]:
                raise
"""


@pytest.mark.parametrize("environment", FOLDERS, indirect=True)
@pytest.mark.long
def test_package_is_imported_whole(environment: Environment, tmp_path: Path) -> None:
    missing = [name for name in EXTRAS if not (environment.site / name).exists()]
    environment.run("python", "-c", IMPORT_ALL, environment.package, *missing, cwd=tmp_path)


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_wheel_has_every_file_of_its_package(package: str, wheels: dict[str, Path], checkout: Path) -> None:
    folder = checkout / DISTRIBUTIONS[package]
    root = folder / package if (folder / package).is_dir() else folder
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    files = {file for file in files if ".egg-info/" not in file}
    there = {name.removeprefix(f"{package}/") for name in zipfile.ZipFile(wheels[package]).namelist()}
    assert files - there <= OF_A_CHECKOUT
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in there)
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    "environment",
    [package if package == "kofn_switch" else pytest.param(package, marks=pytest.mark.long) for package in FOLDERS],
    indirect=True,
)
def test_other_packages_are_absent(environment: Environment) -> None:
    there = {path.name for path in environment.site.iterdir() if path.name.startswith("kofn") and path.is_dir()}
    assert {name for name in there if not name.endswith(".dist-info")} == {
        name.replace("-", "_") for name in environment.own
    }


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """Return a folder with a user's own modules, and a short configuration."""
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('kofn imported a file of the user')\n")
    (tmp_path / "few.toml").write_text(
        "[network]\nlink_mbps = 20\n[run]\ntrials = ['fixed:3']\ntarget = 0.1\nmax_iterations = 8\n"
    )
    return tmp_path


@pytest.mark.parametrize("environment", ["kofn"], indirect=True)
@pytest.mark.long
def test_installed_commands_ignore_the_users_files(environment: Environment, users_folder: Path) -> None:
    code = "import kofn, kofn_host; print(kofn.__file__, kofn_host.__file__, sep='\\n')"
    assert environment.run("python", "-c", code, cwd=users_folder).stdout.splitlines() == [
        str(environment.site / package / "__init__.py") for package in ("kofn", "kofn_host")
    ]
    assert "Usage" in environment.run("kofn", "--help", cwd=users_folder).stdout
    assert json.loads(environment.run("kofn", "simulate", "few.toml", "--json", cwd=users_folder).stdout)["ok"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (network namespaces)")
@pytest.mark.parametrize("environment", ["kofn"], indirect=True)
@pytest.mark.long
def test_installed_run_trains(environment: Environment, users_folder: Path) -> None:
    inside = ("-c", "exec unshare --net kofn run few.toml --out out --json")
    assert json.loads(environment.run("bash", *inside, cwd=users_folder).stdout)["ok"]


@pytest.mark.parametrize("environment", ["kofn_switch"], indirect=True)
def test_switch_alone_loads_a_program(environment: Environment, sources: Path) -> None:
    assert "simple_switch_grpc" in environment.run("kofn-switch", "--help", cwd=sources).stdout
    code = "import sys; from kofn_switch.engine.engine import Engine; Engine({}).load(open(sys.argv[1], 'rb').read())"
    environment.run("python", "-c", code, "p4src/build/kofn.json", cwd=sources)


@pytest.fixture
def sources(checkout: Path, tmp_path: Path) -> Path:
    """Return a folder with the tests and the files that they read, without the folders of packages."""
    for name in ("pyproject.toml", "tests", "bench", "docs", "examples", "p4src"):
        (tmp_path / name).symlink_to(checkout / name)
    return tmp_path


@pytest.mark.parametrize("environment", ROOMS, indirect=True)
@pytest.mark.long
def test_tests_of_a_room_import_nothing_else(environment: Environment, sources: Path) -> None:
    pytest_ = ("python", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    environment.run(*pytest_, f"tests/{ROOMS[environment.package]}", cwd=sources)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("environment", ROOMS, indirect=True)
def test_tests_of_a_room_pass_where_it_is_alone(environment: Environment, sources: Path) -> None:
    pytest_ = ("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", "-p", "no:cacheprovider")
    environment.run(*pytest_, f"tests/{ROOMS[environment.package]}", cwd=sources)
