"""Conditions that must hold before any process starts; each failure has its remedy."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kofn.run import accelerators
from kofn.run.errors import RunError
from kofn.run.network import BOOT, SYSTEM_PYTHON
from kofn.run.switch_identity import bmv2
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.network import NetworkSection
from kofn_common.config.schema import Config
from kofn_host.workload import straggler_class, workload_class
from kofn_switch.identity import BMV2

BOOT_S = 30.0

RESULT_BYTES = 50_000_000
"""The size of a long run's results, in bytes. The results of a default run have 5 MB."""


def check_machine(target: str) -> None:
    """Raise RunError for the first missing requirement."""
    _check_root()
    _check_tools(target)


def check_needs(config: Config) -> None:
    """Raise ConfigError for a job's missing requirement: PyTorch, recorded gradients, a trace, an accelerator."""
    if missing := load_collective(config.job.collective).missing():
        raise ConfigError(f"job.collective is {config.job.collective!r}: {missing}")
    workload_class(config).check(config)
    straggler_class(config).check(config)
    accelerators.check(config.torch)


def check_ports(network: NetworkSection, page_port: int | None = None, switches: int = 1) -> None:
    """Raise RunError for a port that another process listens on."""
    if page_port:
        _check_port(page_port, "--port")
    for number, port in enumerate(network.p4runtime_ports(switches)):
        _check_port(port, f"network.p4runtime_port, of leaf {number - 1}" if number else "network.p4runtime_port")
    _check_port(network.controller_port, "network.controller_port")


def check_management(network: NetworkSection) -> None:
    """Raise RunError if this machine has another network of these addresses, or kofn's network runs."""
    argv = [str(SYSTEM_PYTHON), str(BOOT), "--check-machine", "--hosts", "1", "--management", network.management]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=BOOT_S, check=False)
    if result.returncode:
        raise RunError(result.stderr.strip().removeprefix("boot.py: "))


def check_space(folder: Path) -> None:
    """Raise RunError if the disk of a run's folder is full, or nearly so."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    if (free := shutil.disk_usage(there).free) < RESULT_BYTES:
        raise RunError(
            f"{there} has {free / 1e6:.0f} MB left, the results in {folder} need {RESULT_BYTES / 1e6:.0f} MB at least: "
            "--out DIR puts them elsewhere"
        )


def _check_root() -> None:
    if os.geteuid() != 0:
        raise RunError("making network namespaces needs root: sudo make run, or sudo .venv/bin/kofn run")


def _check_tools(target: str) -> None:
    if not SYSTEM_PYTHON.exists():
        raise RunError(f"{SYSTEM_PYTHON} is missing, the network is made with it: apt-get install python3")
    if not BOOT.exists():
        raise RunError(f"{BOOT} is missing: kofn runs from its source tree (pip install -e .)")
    if shutil.which("ip") is None:
        raise RunError("the command 'ip' is missing: apt-get install iproute2")
    if target == "embedded" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise RunError("no C compiler (cc, gcc or clang) for the embedded switch: apt-get install gcc libc6-dev")
    if target == "bmv2" and bmv2() is None:
        raise RunError(
            f"{BMV2} is not on the PATH: install the package p4lang-bmv2 "
            "(https://github.com/p4lang/behavioral-model) or use --target embedded, which needs neither"
        )


def _check_port(port: int, field: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen(1)
        except OSError:
            holder = ", ".join(holders(port)) or "an unknown process"
            raise RunError(
                f"TCP port {port} ({field}) is in use by {holder}: end it (kofn stop ends another run), "
                f"or choose another port in the configuration"
            ) from None


def holders(port: int) -> Iterator[str]:
    """Yield the processes that listen on a TCP port, or have a connection from it, as 'pid 12 (name)'."""
    inodes = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield f"pid {process.name} ({' '.join(command.split())[:80]})"
        except OSError:
            continue  # the process has just ended


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6 in this kernel
        for row in rows:
            fields = row.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
