"""Installations from wheel and sdist: the added files, and a user's own files, which do not interfere."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OWN = ("run", "host", "config", "controller", "sim", "switch", "report", "results", "rpc", "cli")
"""Names of a user's own modules; importing one of them by mistake fails."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packaged files, since the build writes into their folder."""
    folder = tmp_path_factory.mktemp("source")
    for room in ("controller", "host", "kofn", "mininet", "p4src"):
        shutil.copytree(ROOT / room, folder / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new environment's site-packages with the wheel, or the sdist's wheel, and this
    environment's libraries.
    """
    folder = tmp_path_factory.mktemp(request.param)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if request.param == "sdist":
        made = f"import setuptools.build_meta as backend; print(backend.build_sdist({str(folder)!r}))"
        run = subprocess.run([sys.executable, "-c", made], cwd=source, check=True, capture_output=True, text=True)
        source = folder / run.stdout.splitlines()[-1]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    install = [*pip, "--python", str(environment / "bin" / "python"), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (found,) = environment.glob("lib/python*/site-packages")
    (found / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")  # .pth files found there are not read
    return found


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """Return a folder with a user's own modules."""
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('kofn imported a file of the user')\n")
    return tmp_path


def command(installed: Path, folder: Path, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the environment in the user's folder."""
    program = installed.parents[2] / "bin" / name
    run = subprocess.run(
        [program, *words], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "KOFN_STATE_DIR": str(folder / "state")}


def test_installation_adds_one_name(installed: Path) -> None:
    others = {"libraries.pth", "__pycache__"}
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} - others == {"kofn"}
    programs = {path.name for path in (installed.parents[2] / "bin").iterdir()}
    assert {name for name in programs if name.startswith("kofn")} == {"kofn", "kofn-switch"}


def test_package_is_complete(installed: Path) -> None:
    """It has every file of the rooms, except those that only a checkout uses."""
    rooms = [path for path in (ROOT / "kofn").iterdir() if path.is_dir()]
    files = {f"{room.name}/{path.relative_to(room)}" for room in rooms for path in room.rglob("*") if path.is_file()}
    there = {str(path.relative_to(installed / "kofn")) for path in (installed / "kofn").rglob("*") if path.is_file()}
    unneeded = {"mininet/README.md", "rpc/kofn.proto", "run/setup.sh", "switch/README.md"}
    assert {name for name in files - there if "__pycache__" not in name} <= unneeded


def test_commands_ignore_the_users_files(installed: Path, users_folder: Path) -> None:
    code = "import kofn, kofn_host; print(kofn.__file__, kofn_host.__file__, kofn.Config().job.workers, sep='\\n')"
    assert command(installed, users_folder, "python", "-c", code).stdout.splitlines() == [
        str(installed / "kofn/__init__.py"),
        str(installed / "kofn/host/__init__.py"),
        "4",
    ]
    assert "simple_switch_grpc" in command(installed, users_folder, "python", "-m", "kofn_switch", "--help").stdout
    for name in ("kofn", "kofn-switch"):
        assert "Usage" in command(installed, users_folder, name, "--help").stdout.title()


@pytest.mark.slow
def test_installed_simulation_works(installed: Path, users_folder: Path) -> None:
    (users_folder / "few.toml").write_text("[run]\ntrials = ['fixed:3']\ntarget = 0.1\nmax_iterations = 8\n")
    assert json.loads(command(installed, users_folder, "kofn", "simulate", "few.toml", "--json").stdout)["ok"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (network namespaces)")
def test_installed_run_works(installed: Path, users_folder: Path) -> None:
    (users_folder / "few.toml").write_text("[run]\ntrials = ['fixed:3']\ntarget = 0.1\nmax_iterations = 8\n")
    arguments = ("few.toml", "--out", "out", "--json")
    inside = ["unshare", "-n", str(installed.parents[2] / "bin" / "kofn"), "run", *arguments]
    run = subprocess.run(
        inside,
        cwd=users_folder,
        env=environment(users_folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout)["ok"]
