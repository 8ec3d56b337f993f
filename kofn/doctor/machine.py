"""The checks of `kofn doctor` on the machine before it makes a network: rights, tools, kernel, ports, leftovers."""

import asyncio
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kofn.doctor.checks import Check, CheckError
from kofn.run.network import BOOT, SYSTEM_PYTHON
from kofn.run.network_record import records
from kofn.run.preconditions import check_machine, check_ports
from kofn.run.switch_identity import bmv2
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_common.gso import OLDEST, gso_works
from kofn_switch.identity import BMV2

TIMEOUT_S = 20.0
PYTHON = (3, 11)
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
"""The capabilities for interfaces, raw sockets and namespaces, with their bits in /proc/self/status."""

KERNEL = {
    "veth": "ip link add kofn-a type veth peer name kofn-b",
    "bridge": "ip link add kofn-bridge type bridge",
    "tbf": "tc qdisc add dev kofn-a root handle 5: tbf rate 1mbit burst 15k limit 1m",
}
"""The parts of a network, with commands that need them; later commands use the interfaces of earlier commands."""

SYSTEM = f"""
import platform, sys
sys.path.insert(0, {str(BOOT.parent)!r})
import drivers
print(platform.python_version(), drivers.missing() or "", sep="\\n")
"""


def machine_checks(config: Config) -> list[Check]:
    """Return the checks in the order of their dependence."""
    checks: dict[str, Callable[[], str]] = {
        "root": _root,
        "python": _python,
        "commands": lambda: _commands(config.network.target),
        "hosts": lambda: _hosts(config.network.driver),
        "kernel": _kernel,
        "ports": lambda: _ports(config),
        "leftovers": _leftovers,
    }
    return [Check(name=name, check=functools.partial(asyncio.to_thread, check)) for name, check in checks.items()]


def _root() -> str:
    if os.geteuid() != 0:
        raise CheckError(f"user id must be 0 to make namespaces, got {os.geteuid()}", "sudo .venv/bin/kofn doctor")
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    if missing := [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]:
        raise CheckError(f"root without {', '.join(missing)}", "a container needs them: docker run --privileged ...")
    return f"root with {', '.join(CAPABILITIES)}"


def _python() -> str:
    """Check this interpreter, and the packages that the project depends on."""
    if sys.version_info[:2] < PYTHON:
        raise CheckError(f"{sys.executable} is {sys.version.split()[0]}", "Python must be 3.11 or later: make setup")
    missing = [name for name in _dependencies() if not _installed(name)]
    if missing:
        raise CheckError(f"packages are missing in {sys.prefix}: {', '.join(missing)}", "`make setup` installs them")
    return f"{sys.version.split()[0]}, {len(_dependencies())} packages"


def _dependencies() -> list[str]:
    """Return the names of the packages in pyproject.toml."""
    try:
        wanted = importlib.metadata.requires("kofn") or []
    except importlib.metadata.PackageNotFoundError:
        raise CheckError("kofn itself is not installed", "`make setup` installs it") from None
    return [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in wanted if "extra ==" not in line]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _commands(target: str) -> str:
    """Check that all commands exist, and that the compiler compiles."""
    try:
        check_machine(target)
    except KofnError as error:
        message, _, advice = str(error).partition(": ")
        raise CheckError(message, advice) from None
    if shutil.which("tc") is None:
        raise CheckError("the command 'tc' is missing", "apt-get install iproute2")
    switch = _compiler() if target == "embedded" else f"{shutil.which(BMV2)} ({bmv2()})"
    return f"{shutil.which('ip')}, {shutil.which('tc')}, {switch}"


def _compiler() -> str:
    """Return the path of a compiler that works."""
    compiler = next(path for name in ("cc", "gcc", "clang") if (path := shutil.which(name)))
    source = "#include <stdint.h>\n#include <string.h>\nint main(void) { return 0; }\n"
    result = _run(compiler, "-x", "c", "-shared", "-fPIC", "-o", "/dev/null", "-", text=source)
    if result.returncode:
        raise CheckError(f"{compiler} cannot compile: {_last_line(result.stderr)}", "apt-get install gcc libc6-dev")
    return compiler


def _hosts(driver: str) -> str:
    """Check the driver of the hosts: Mininet, or plain namespaces."""
    result = _run(str(SYSTEM_PYTHON), "-B", "-c", SYSTEM)
    if result.returncode:
        raise CheckError(
            f"{SYSTEM_PYTHON} cannot run mininet/boot.py: {_last_line(result.stderr)}", "Python 3.11 or later"
        )
    version, obstacle, *_ = [*result.stdout.splitlines(), ""]
    if tuple(map(int, version.split(".")[:2])) < PYTHON:
        raise CheckError(f"{SYSTEM_PYTHON} is Python {version}", "the network needs 3.11 or later there")
    if obstacle and driver == "mininet":
        raise CheckError(f"driver mininet: {obstacle}", "apt-get install mininet, or --driver netns")
    made_by = "plain namespaces" if obstacle or driver == "netns" else "Mininet"
    reason = f" ({obstacle})" if obstacle and driver != "netns" else ""
    return f"{made_by}{reason}, {SYSTEM_PYTHON} {version}"


def _kernel() -> str:
    """Make every part of a network, in a namespace that ends with the process that made it."""
    result = _run("unshare", "--net", "true")
    if result.returncode:
        raise CheckError(f"no network namespaces: {_last_line(result.stderr)}", "a container needs --privileged")
    tried = ""
    for feature, command in KERNEL.items():
        tried += f"{command} && "
        result = _run("unshare", "--net", "sh", "-c", f"{tried}true")
        if result.returncode:
            detail = f"no {feature}: `{command}`: {_last_line(result.stderr)}"
            raise CheckError(detail, "the kernel needs veth, bridge and sch_tbf: modprobe, or another kernel")
    needed = "" if gso_works() else f"no coalesced packets, which need Linux {'.'.join(map(str, OLDEST))}"
    return f"namespaces, {', '.join(KERNEL)}, {needed or 'coalesced packets'}"


def _ports(config: Config) -> str:
    """Check that the ports of switch and controller are free."""
    switches = len(config.switches)
    try:
        check_ports(config.network, switches=switches)
    except KofnError as error:
        message, _, advice = str(error).partition(": ")
        raise CheckError(message, advice) from None
    ports = ", ".join(map(str, config.network.p4runtime_ports(switches)))
    return f"TCP {ports} and {config.network.controller_port} are free"


def _leftovers() -> str:
    """Check for records of networks that were not removed."""
    known = records()
    if pids := [str(record.pid) for record in known if record.alive]:
        raise CheckError(f"a network is there already, of pid {', '.join(pids)}", f"kill {pids[0]} ends it")
    left = {name for record in known for name in record.interfaces}
    return f"none{f', but those of {len(known)} dead networks: the next run removes them' if left else ''}"


def _run(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Return a command's result. Raise CheckError if the command is missing or hangs."""
    try:
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise CheckError(f"the command {argv[0]!r} is missing", "apt-get install util-linux iproute2") from None
    except subprocess.TimeoutExpired:
        raise CheckError(f"`{' '.join(argv)}` did not end in {TIMEOUT_S:.0f} s", "try it by hand") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
