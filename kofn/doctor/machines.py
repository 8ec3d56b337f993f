"""The checks of `kofn doctor --lab`: every machine of a laboratory at the same time, each up to its first failure.

    reached -> root -> tools -> free -> clock -> mtu

A machine that `reached` names has this checkout and a Python for it, because its boot.py runs from there.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kofn.doctor.checks import Check, CheckError, CheckSkipped, Finding, walk
from kofn.run.errors import RunError
from kofn.run.lab.checkout import Checkout
from kofn.run.lab.lab_file import Lab, LabMachine
from kofn.run.lab.machine import ConnectedMachine
from kofn.run.machine import TUNNEL_BYTES, packet_bytes
from kofn_common.config.schema import Config

TOOLS = {"ip": "iproute2", "tc": "iproute2"}
COMPILERS = ("cc", "gcc", "clang")


LAB_CHECKS = ("reached", "root", "tools", "free", "clock", "mtu")
"""The names of the checks, in the order of their dependence."""


class MachineChecks:
    """The checks of one machine."""

    def __init__(self, lab: Lab, machine: LabMachine, checkout: Checkout, config: Config, folder: Path) -> None:
        self._lab, self._described, self._checkout, self._config = lab, machine, checkout, config
        self._folder = folder
        self._connected: ConnectedMachine | None = None

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks = (self._reached, self._root, self._tools, self._free, self._clock, self._mtu)
        return [Check(name=name, check=check) for name, check in zip(LAB_CHECKS, checks, strict=True)]

    async def close(self) -> None:
        """End the connection."""
        if self._connected is not None:
            await self._connected.stop(2.0)
            await self._connected.close()

    @property
    def _machine(self) -> ConnectedMachine:
        assert self._connected is not None, "the check 'reached' comes first"
        return self._connected

    async def _reached(self) -> str:
        host = self._described.host
        log = self._folder / f"{host}.log"
        try:
            self._connected = await ConnectedMachine.connect(self._described, self._checkout, self._folder, log=log)
        except RunError as error:
            raise CheckError(str(error), f"`ssh {host} true` must succeed without a question") from None
        return f"has checkout {self._checkout.version}"

    async def _root(self) -> str:
        if self._machine.user != 0:
            raise CheckError("boot.py does not run as root", "an account that may use `sudo -n`, or root's")
        return "root of a user namespace" if self._machine.relayed else "root"

    async def _tools(self) -> str:
        """Check for the commands that a machine's processes need."""
        for tool, package in TOOLS.items():
            if not await self._has(tool):
                raise CheckError(f"the command {tool} is missing", f"apt-get install {package}")
        if not any([await self._has(compiler) for compiler in COMPILERS]):
            raise CheckError("no C compiler (cc, gcc or clang)", "apt-get install gcc libc6-dev")
        return "iproute2, a C compiler"

    async def _has(self, tool: str) -> bool:
        code, _ = await self._machine.told("sh", "-c", f"command -v {tool}")
        return code == 0

    async def _free(self) -> str:
        """Check that no other network of kofn runs there."""
        network = self._config.network
        boot = [f"{self._machine.translation(str(self._checkout.root))}/mininet/boot.py", "--check-machine"]
        code, said = await self._machine.told("python3", *boot, "--hosts", "1", "--management", network.management)
        if code:
            raise CheckError(said.removeprefix("boot.py: "), "`kofn stop` where that run was started ends it")
        return "no other network"

    async def _clock(self) -> str:
        """Check that certificates are valid by the machine's clock."""
        from kofn_common.rpc.certificates import SKEW  # noqa: PLC0415  # needs kofn[certs]

        offset, most_s = self._machine.offset, SKEW.total_seconds()
        if abs(offset.real_s) > most_s:
            raise CheckError(
                f"the clock differs by {offset.real_s:+.0f} s, certificates allow {most_s:.0f} s",
                "set the clock, by NTP for example",
            )
        return f"{offset.real_s:+.3f} s"

    async def _mtu(self) -> str:
        """Check the MTU of the whole way to the switch's machine: a packet of the job must pass unfragmented."""
        if self._described.switch:
            raise CheckSkipped("the switch's machine")
        if self._machine.relayed:
            raise CheckSkipped("a user namespace relays no pings")
        needed = packet_bytes(self._config.job) + TUNNEL_BYTES
        argv = ["-m", "kofn.doctor.echo", self._lab.switch.address, str(needed)]
        code, said = await self._machine.told(self._machine.python, *argv)
        if code or int(said) < needed:
            found = said if code else f"{said} bytes pass to {self._lab.switch.address}"
            raise CheckError(f"packets of {needed} bytes must pass: {found}", "fewer job.words, or a larger MTU there")
        return f"{needed} bytes pass"


async def examine_lab(lab: Lab, config: Config) -> dict[str, list[Finding]]:
    """Check all machines at once; return each one's findings by its host."""
    checkout = Checkout.own()
    with tempfile.TemporaryDirectory(prefix="kofn-doctor-") as folder:
        several = [MachineChecks(lab, machine, checkout, config, Path(folder)) for machine in lab.machines]
        try:
            found = await asyncio.gather(*(walk(one.checks(), lambda finding: None) for one in several))
        finally:
            await asyncio.gather(*(one.close() for one in several))
    return dict(zip([machine.host for machine in lab.machines], found, strict=True))


def rows(found: dict[str, list[Finding]]) -> list[Sequence[str]]:
    """Return a table's rows: each machine with the results of its checks."""
    return [
        (host, *(finding.state if finding.state != "ok" else finding.detail for finding in findings))
        for host, findings in found.items()
    ]


def named(found: dict[str, list[Finding]]) -> list[Finding]:
    """Return all machines' findings, each with its machine's name."""
    return [replace(finding, name=f"{host} {finding.name}") for host, findings in found.items() for finding in findings]
