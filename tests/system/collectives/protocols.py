"""Workers of a protocol with its own data plane, each in a namespace, at a real switch."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.faults import FaultSection
from kofn_common.config.job import JobSection
from kofn_controller.p4runtime.data_plane import DataPlane, load_data_plane
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.transport import Transport
from tests.docs.markdown import ROOT, blocks
from tests.system.collectives.crews import Threads, addresses
from tests.system.collectives.switched import HOSTS, Place, RealSwitch

HOW_TO = ROOT / "docs" / "howto" / "protocol.md"
EXAMPLES = ROOT / "examples" / "protocols"
SMALLEST = "stop_and_wait:StopAndWait"
PROTOCOLS = (SMALLEST, "switchml:Switchml", "atp:Atp", *filter(None, [os.environ.get("KOFN_PROTOCOL")]))

FIFO = FaultSection(drop=0.03, duplicate=0.03)
"""Faults of a network that keeps the order of packets."""


def write_smallest(folder: Path) -> None:
    """Write the files of the how-to."""
    for block in blocks(HOW_TO):
        if Path(block.note).suffix:
            (folder / block.note).write_text(block.text)


@contextmanager
def protocol_crew(kind: str, target: str, *faults: FaultSection, **job: Any) -> Iterator[Threads]:
    """Yield the workers at their own switch; `job`: keys of [job]."""
    section, collective = JobSection(workers=HOSTS, collective=kind, **job), load_collective(kind)
    with ExitStack() as stack:
        switch = RealSwitch(target, load_data_plane(collective.data_plane)(), section)
        stack.callback(switch.close)
        place = switch.place(addresses(HOSTS))
        if collective.server:
            stack.enter_context(_server(collective.server, place))

        def join(rank: int) -> Any:
            sending, receiving = (Faults(faults, rank=rank, direction=way, seed=1) for way in ("send", "receive"))

            def transport(port: int) -> Transport:
                return place.transport(rank, sending=sending, receiving=receiving, port=port)

            make: Any = collective
            return make(rank, place.addresses, job=section, transports=transport, timeout_s=20.0)

        with ThreadPoolExecutor(HOSTS) as pool:
            made = list(pool.map(join, range(HOSTS)))
        for communicator in made:
            stack.enter_context(communicator)
        yield Threads(made)


@contextmanager
def _server(module: str, place: Place) -> Iterator[None]:
    """Run a job's server in the namespace after the workers'."""
    command = ["nsenter", f"--net={place.namespaces[HOSTS]}", sys.executable, "-m", module, "--address", place.server]
    command += ["--job", str(place.job.id), *(part for worker in place.locals for part in ("--worker", worker))]
    with subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline().startswith(b"serving job")
        yield
        server.terminate()
        assert server.wait(10) == 0


@contextmanager
def sockets(target: str, plane: DataPlane, job: JobSection, *more: tuple[int, int]) -> Iterator[list[socket.socket]]:
    """Yield a socket of each worker at a real switch with this program; `more`: rank and UDP port of further ones."""
    with ExitStack() as opened:
        switch = RealSwitch(target, plane, job)
        opened.callback(switch.close)
        place, found = switch.place(addresses(HOSTS)), []
        for rank, port in (*((rank, plane.port) for rank in range(HOSTS)), *more):
            transport = place.transport(rank, port=port)
            opened.callback(transport.close)
            transport._socket.settimeout(5)
            found.append(transport._socket)
        yield found
