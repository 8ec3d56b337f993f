"""The checks of `kofn doctor` inside the hosts: boot.py measures the links, and probes act as workers."""

import asyncio
import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from kofn.doctor.checks import Check, CheckError, CheckSkipped, by_detail
from kofn.doctor.probe import ProbeStep
from kofn.doctor.probe_blocks import ProbePlan
from kofn.doctor.small_network import POLL_S, SmallNetwork
from kofn.run.network import LinkCheck
from kofn_common.config.errors import KofnError
from kofn_common.wire.packet import PORT, SERVICE

STEP_S = 30.0
COUNTED_S = 1.5
"""The wait for new counters: the controller reads the switch's counters once a second."""

FIREWALL = "does a firewall of this machine drop it? nft list ruleset; iptables -L"
STEPS = {
    "gRPC": FIREWALL,
    "access": "the controller must refuse clients without a certificate: was it started with --certs?",
    "attach": "the controller's answer says why",
    "contribution": f"UDP port {PORT} to {SERVICE} and back: tcpdump -i s1-ethN; ip neigh in the host",
    "aggregation": "a worker alone gets an answer, but not all together: the job's multicast group lacks a port",
    "largest packet": "small packets pass: is the MTU 9000 at both ends of every data link? ip link",
}
"""The steps of a probe in order, with the advice for a failure."""


class Hosts:
    """The checks of a network with a running controller, up to exact sums at every worker."""

    def __init__(self, small: SmallNetwork) -> None:
        self._small = small
        self._checks: list[LinkCheck] = []

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks: dict[str, Callable[[], Awaitable[str]]] = {
            "management": self._measure,
            "forwarding": lambda: self._measured("ping", FIREWALL),
            **{name: functools.partial(self._step, name) for name in STEPS},
            "shaping": self._shaping,
        }
        return [Check(name=name, check=check) for name, check in checks.items()]

    async def _measure(self) -> str:
        """Have boot.py run all its checks, and return the measurements of the management network."""
        try:
            self._checks = [check async for check in self._small.network.check()]
        except KofnError as error:
            raise CheckError(str(error), "see the message") from None
        return await self._measured("management", FIREWALL)

    async def _measured(self, kind: str, advice: str) -> str:
        """Return the measurements of a kind, or raise the first failure of this kind."""
        checks = [check for check in self._checks if check.name.split()[0] == kind]
        for check in checks:
            if not check.ok:
                raise CheckError(f"{check.name.removeprefix(kind).strip()}: {check.detail}", advice)
        if not checks:
            raise CheckSkipped("a single host has no other host to send to")
        return by_detail({check.name.removeprefix(kind).strip(): check.detail for check in checks})

    async def _shaping(self) -> str:
        """Return the measured rates. If a rate is wrong, measure everything once again."""
        cores = os.cpu_count()
        busy = f"this machine's load is {os.getloadavg()[0]:.1f} on {cores} cores: a busy switch loses packets"
        advice = f"tc -s qdisc show dev DEVICE, at both ends of the link; {busy}"
        try:
            return await self._measured("rate", advice)
        except CheckError:
            await self._measure()
            return await self._measured("rate", advice)

    async def _step(self, name: str) -> str:
        """Wait until all probes have passed a step; CheckError if a probe fails. The first step starts the probes."""
        if name == "access" and self._small.commands.certificates is None:
            raise CheckSkipped("network.tls is false: every client may call the controller")
        if name == next(iter(STEPS)):
            await self._launch()
        deadline = time.monotonic() + STEP_S
        while True:
            steps = {host: _steps(self._small.log(_name(host))).get(name) for host, _ in self._small.workers}
            done = {host: step for host, step in steps.items() if step is not None}
            for host, step in done.items():
                if not step.ok:
                    raise CheckError(f"{host}: {step.detail}{await self._counted(name)}", STEPS[name])
            if len(done) == len(steps):
                return by_detail({host: step.detail for host, step in done.items()})
            await self._wait(sorted(steps.keys() - done.keys()), deadline, name)

    async def _wait(self, hosts: list[str], deadline: float, name: str) -> None:
        """Wait a moment; CheckError if a probe has ended before the step, or after the deadline."""
        try:
            await self._small.still_running(map(_name, hosts))
        except CheckError:
            if any(name in _steps(self._small.log(_name(host))) for host in hosts):
                return  # the probe has written the step, then ended
            raise
        if time.monotonic() > deadline:
            raise CheckError(f"{', '.join(hosts)}: no answer in {STEP_S:.0f} s", STEPS[name])
        await asyncio.sleep(POLL_S)

    async def _launch(self) -> None:
        """Start a probe in every host that has a worker."""
        job = self._small.config.job
        for rank, (host, _) in enumerate(self._small.workers):
            plan = ProbePlan(
                job=job.id,
                exact=job.exact_id,
                rank=rank,
                workers=job.workers,
                racks=job.racks,
                controller=self._small.commands.management(),
                service=SERVICE,
                certs=self._small.commands.certificates,
            )
            text = msgspec.json.encode(plan, enc_hook=str).decode()
            await self._small.launch(_name(host), host, [sys.executable, "-m", "kofn.doctor.probe", text])

    async def _counted(self, name: str) -> str:
        """Return the switch's counts for a step about packets. The counts show how far the packets came."""
        if name not in ("contribution", "aggregation", "largest packet"):
            return ""
        await asyncio.sleep(COUNTED_S)
        async with self._small.inspector() as inspector:
            async for status in inspector.statuses(self._small.config.job.id):
                if status is None:
                    return "; the controller does not answer"
                counted = ", ".join(
                    f"{verdict} {number}" for verdict, number in sorted(status.counters.items()) if number
                )
                return f"; the switch has counted {counted or 'no packet of any worker'}"
        return ""


def _name(host: str) -> str:
    return f"probe-{host}"


def _steps(log: Path) -> dict[str, ProbeStep]:
    """Return a probe's steps so far, by name; other lines of the file are its log."""
    found = {}
    for line in log.read_bytes().splitlines() if log.exists() else []:
        try:
            step = msgspec.json.decode(line, type=ProbeStep)
        except ValueError:
            continue
        found[step.step] = step
    return found
