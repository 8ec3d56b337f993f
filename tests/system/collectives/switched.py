"""Workers of one job at a switch: the slot model on loopback, or a real switch with each worker in a namespace."""

import asyncio
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kofn_common.config.job import JobSection
from kofn_controller.p4runtime.data_plane import DataPlane
from kofn_controller.p4runtime.layout import lay_out
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_host.collectives import InNetwork
from kofn_host.transport.event_loop import EventLoop
from kofn_host.transport.transport import Transport
from kofn_switch.identity import BMV2
from tests.controller.harness import star
from tests.dataplane.frames import SERVICE_IP, SERVICE_MAC, host_mac
from tests.dataplane.lab import CLONE_NEWNET, MTU
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.udp_switch import UdpSwitch
from tests.loopback import loopback
from tests.system.control.switches import running

MODEL, EMBEDDED = "slot model", "embedded"

SWITCHES = (MODEL, EMBEDDED, "bmv2")

HOSTS, GENERATION = 3, 1_700_000_000

ELEMENTS = 100
"""Elements of an elastic call."""

_links = count(1)


@dataclass(frozen=True)
class Place:
    """The addresses of a crew's workers, and of a server; `namespaces`: their files, empty on loopback."""

    job: JobSection
    addresses: tuple[str, ...]
    service: str
    locals: tuple[str, ...]
    server: str = ""
    namespaces: tuple[str, ...] = ()
    generation: int = 0
    first_iteration: int = 1

    def join(self, rank: int, timeout_s: float) -> InNetwork:
        return InNetwork(
            rank,
            ELEMENTS,
            job=self.job,
            transport=self.transport(rank),
            addresses=self.addresses,
            generation=self.generation,
            first_iteration=self.first_iteration,
            timeout_s=timeout_s,
        )

    def transport(self, rank: int, **given: Any) -> Transport:
        """Return a transport whose socket belongs to the worker's namespace; the rank after all is the server's."""

        def transport() -> Transport:
            if self.namespaces:
                with open(self.namespaces[rank]) as namespace:
                    assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0
            return Transport(self.service, local=(*self.locals, self.server)[rank], **given)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(transport).result()


@contextmanager
def place(kind: str, workers: int, addresses: tuple[str, ...], **given: int) -> Iterator[Place]:
    """Yield a place for one crew; `given` goes to the slot model."""
    if kind == MODEL:
        with beneath_the_model(workers, addresses, **given) as found:
            yield found
        return
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if kind == "bmv2" and subprocess.run(["which", BMV2], capture_output=True, check=False).returncode:
        pytest.skip(f"{BMV2} is not on the PATH")
    assert workers == HOSTS
    yield started(kind).place(addresses)


@contextmanager
def beneath_the_model(workers: int, addresses: tuple[str, ...], lose: int = 0, k: int = 0) -> Iterator[Place]:
    job = JobSection(workers=workers, words=32, slots=256, exact_slots=128)
    own, locals = loopback(89, 200), tuple(loopback(89, rank + 1) for rank in range(workers))
    elastic, exact = (SlotModel(workers=workers, k=k or workers, slots=slots) for slots in (job.slots, job.exact_slots))
    switch = UdpSwitch(elastic, own, lambda rank: locals[rank], lose, {job.exact_id: exact})
    try:
        yield Place(job, addresses, own, locals)
    finally:
        switch.close()


JOB = JobSection(workers=HOSTS, words=32, slots=256, exact_slots=128)


class RealSwitch:
    """A switch, its controller's side and a namespace for each of HOSTS workers and a server, until close()."""

    def __init__(self, target: str, plane: DataPlane | None = None, job: JobSection = JOB) -> None:
        self.job, hosts = job, HOSTS + 1
        self._stack, self._generation = ExitStack(), GENERATION
        names = [
            f"kofn{os.getpid() % 10_000}.{next(_links)}" for _ in range(hosts)
        ]  # earlier generations disappear after a while
        self._holders = [self._host(name, rank) for rank, name in enumerate(names)]
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        interfaces = [f"{rank + 1}@{name}" for rank, name in enumerate(names)]
        self.switch = self._stack.enter_context(running(target, folder, interfaces))
        self._slots = Slots(layout=lay_out([job], star(hosts))[0], k=HOSTS)
        self._loop = EventLoop()
        self._stack.callback(self._loop.close)
        link = SwitchLink(address=self.switch.address, device_id=0, plane=plane or KofnPlane(), jobs=[self._slots])
        self._loop.run(self._connect(link))

    def close(self) -> None:
        self._stack.close()

    def place(self, addresses: tuple[str, ...]) -> Place:
        """Return the addresses of a new crew, whose slots have a new generation."""
        self.restart_slots()
        return Place(
            job=self.job,
            addresses=addresses,
            service=SERVICE_IP,
            locals=tuple(f"10.0.0.{rank + 1}" for rank in range(HOSTS)),
            server=f"10.0.0.{HOSTS + 1}",
            namespaces=tuple(f"/proc/{holder.pid}/ns/net" for holder in self._holders),
            generation=self._generation,
        )

    def set_k(self, k: int) -> None:
        """Set k of the elastic job."""
        self._loop.run(self._slots.set_k(k))

    def restart_slots(self) -> None:
        """Lose all slots of the current generation."""
        self._generation += 1
        self._loop.run(self._slots.admit(self._generation, self._slots.k))

    def _host(self, name: str, rank: int) -> "subprocess.Popen[bytes]":
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo ready && exec sleep 3600"]
        holder = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self._stack.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        pid, mtu = str(holder.pid), str(MTU)
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        for line in (
            ["ip", "link", "add", name, "mtu", mtu, "type", "veth", "peer", "name", "host", "netns", pid],
            [*inside, "ip", "link", "set", "host", "address", host_mac(rank + 1), "mtu", mtu, "up"],
            [*inside, "ip", "addr", "add", f"10.0.0.{rank + 1}/24", "dev", "host"],
            [*inside, "ip", "neigh", "add", SERVICE_IP, "lladdr", SERVICE_MAC, "dev", "host"],
            ["ip", "link", "set", name, "up"],
        ):
            subprocess.run(line, check=True)
        return holder

    async def _connect(self, link: SwitchLink) -> None:
        self._task = asyncio.create_task(link.run())
        async with asyncio.timeout(60):
            await link.ready.wait()
        await self._slots.admit(self._generation, HOSTS)


_started = dict[str, RealSwitch]()


def started(target: str) -> RealSwitch:
    """Return the switch that all crews share until close_all(); each crew begins with later iterations than the
    previous one.
    """
    if target not in _started:
        _started[target] = RealSwitch(target)
    return _started[target]


def close_all() -> None:
    while _started:
        _started.popitem()[1].close()
