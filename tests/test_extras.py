"""kofn without the packages of its extras, and the errors where one is needed."""

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from kofn.cli.main import LAZY
from kofn_common.extras import EXTRAS, remedy
from tests.own_network import own_network

MODULES = ("kofn_host.__main__", "kofn_switch.__main__", "kofn_controller.__main__", "kofn.cli.main", "kofn.sim.runner")

DISTRIBUTION = {"dask_jobqueue": "dask-jobqueue", "yaml": "PyYAML"}
"""Distributions whose packages have another name."""

HIDE = f"import sys, runpy; sys.modules.update(dict.fromkeys({[*{*EXTRAS} - {'torch'}]})); "
"""Makes each import of one of these packages raise ModuleNotFoundError, as if it were not installed. Torch stays, since
SciPy takes such an entry for PyTorch; tests/host/workload/test_own.py tests a missing torch.
"""


def without_extras(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", HIDE + code], capture_output=True, text=True, check=False)


def command(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `kofn` with these words."""
    return without_extras(f"sys.argv = {['kofn', *map(str, words)]}; from kofn.cli.start import main; main()")


@pytest.mark.slow
def test_every_program_and_command_imports_without_the_extras() -> None:
    run = without_extras(f"import {', '.join([*MODULES, *(lazy.module for lazy in LAZY.values())])}")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("package", EXTRAS)
def test_extra_brings_its_packages(package: str) -> None:
    wanted = [line.replace('"', "'") for line in requires("kofn") or ()]
    assert any(
        line.startswith(DISTRIBUTION.get(package, package)) and f"extra == '{EXTRAS[package]}'" in line
        for line in wanted
    )


def test_help_names_every_command() -> None:
    text = command("--help").stdout
    assert all(f"  {name} " in text for name in LAZY)


def test_command_names_the_missing_extra(tmp_path: Path) -> None:
    run = command("certs", tmp_path / "certs")
    assert (run.returncode, run.stderr) == (
        1,
        "kofn: cryptography is not installed: pip install 'kofn[certs]'\n",
    )


@pytest.mark.slow
def test_worker_names_the_missing_extra(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[job]\npackets = 'scapy'")
    argv = ["--config", "run.toml", "--rank", "0", "--controller", "127.0.0.1:1", "--address", "127.0.0.1"]
    argv = ["worker", *argv, "--service", "127.0.0.1", "--metrics", str(tmp_path / "worker-0.jsonl")]
    with own_network():  # other tests bind the port of all addresses
        run = without_extras(
            f"import os; os.chdir({str(tmp_path)!r}); sys.argv = {argv}; "
            "runpy.run_module('kofn_host', run_name='__main__')"
        )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "kofn worker 0: scapy is not installed: pip install 'kofn[scapy]'"
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_certificates_are_used_unchecked(tmp_path: Path) -> None:
    code = (
        "import logging; from pathlib import Path; logging.basicConfig(level='INFO', format='%(message)s'); "
        "from kofn_common.rpc.security import Credentials; "
        f"print(Credentials.load(Path({str(tmp_path / 'certs')!r}), 'operator').name)"
    )
    subprocess.run([Path(sys.executable).with_name("kofn"), "certs", tmp_path / "certs"], check=True)
    run = without_extras(code)
    assert run.stdout == "operator\n"
    assert "operator.pem is not checked before its use: cryptography is not installed" in run.stderr


@pytest.mark.slow
@pytest.mark.long
def test_simulation_ends_without_a_report(tmp_path: Path) -> None:
    (tmp_path / "few.toml").write_text("[run]\ntrials = ['fixed:3']\ntarget = 0.1\nmax_iterations = 8\n")
    run = command("simulate", tmp_path / "few.toml", "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "no report: jinja2 is not installed: pip install 'kofn[plots]'" in run.stdout
    assert (tmp_path / "out" / "summary.json").exists()


def test_other_missing_modules_are_errors() -> None:
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        remedy(ModuleNotFoundError("no numpy", name="numpy"))
