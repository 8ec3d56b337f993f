"""What `pip install kofn` adds, and that a user's own files do not stand in its way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OWN = ("run", "host", "config", "controller", "sim", "switch", "report", "results", "rpc", "cli")
"""Names of a user's own modules; whoever imports one of them by mistake fails."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in (*(path.name for path in (ROOT / "kofn").iterdir() if path.is_symlink()), "kofn"):
        shutil.copytree(ROOT / name, folder / "source" / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder with modules of a user's own."""
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('kofn imported a file of the user')\n")
    return tmp_path


def command(installed: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Python in the user's folder, with the installed package before this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "KOFN_STATE_DIR": str(folder / "state")}
    run = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def test_an_installation_adds_one_name(installed: Path) -> None:
    added = {path.name for path in installed.iterdir() if path.name != "bin" and path.suffix != ".dist-info"}
    assert added == {"kofn"}
    assert {path.name for path in (installed / "bin").iterdir()} == {"kofn", "kofn-switch"}


def test_the_package_is_complete(installed: Path) -> None:
    """Every file that a checkout has in the rooms, but for what only a checkout uses."""
    rooms = {path.resolve(): path.name for path in (ROOT / "kofn").iterdir() if path.is_symlink()}
    files = {f"{rooms[room]}/{path.relative_to(room)}" for room in rooms for path in room.rglob("*") if path.is_file()}
    there = {str(path.relative_to(installed / "kofn")) for path in (installed / "kofn").rglob("*") if path.is_file()}
    unneeded = {"mininet/README.md", "rpc/kofn.proto", "run/setup.sh", "switch/README.md"}
    assert {name for name in files - there if "__pycache__" not in name} <= unneeded


def test_commands_ignore_the_users_files(installed: Path, users_folder: Path) -> None:
    code = "import kofn; print(kofn.__file__, kofn.Config().job.workers, sep='\\n')"
    assert command(installed, users_folder, "-c", code).stdout.splitlines() == [
        str(installed / "kofn/__init__.py"),
        "4",
    ]
    assert "simple_switch_grpc" in command(installed, users_folder, "-m", "kofn.switch", "--help").stdout
    for script in ("kofn", "kofn-switch"):
        assert "Usage" in command(installed, users_folder, str(installed / "bin" / script), "--help").stdout.title()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (network namespaces)")
def test_a_run_from_the_wheel(installed: Path, users_folder: Path) -> None:
    (users_folder / "few.toml").write_text("[run]\ntrials = ['fixed:3']\ntarget = 0.1\nmax_iterations = 8\n")
    arguments = ("few.toml", "--out", "out", "--json")
    inside = ["unshare", "-n", sys.executable, str(installed / "bin" / "kofn"), "run", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(installed), "KOFN_STATE_DIR": str(users_folder / "state")}
    run = subprocess.run(
        inside, cwd=users_folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout)["ok"]
