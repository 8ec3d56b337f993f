"""The checks of `kofn doctor --remote`: every hop from a worker's machine to the switch and the controller of its job.

    certificates -> way -> tunnel -> mtu -> clock -> controller -> p4runtime

The kernel of the switch's machine answers pings in each tunnel (kofn/run/machine.py), so no packet goes to the job.
"""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from kofn.doctor.checks import Check, CheckError, CheckSkipped
from kofn.doctor.echo import Echo
from kofn.doctor.probe import reach
from kofn.doctor.probe_blocks import ProbeError, ProbePlan
from kofn.run.errors import RunError
from kofn.run.machine import (
    ECHO_ADDRESS,
    TUNNEL_BYTES,
    TUNNEL_PORT,
    UDP_BYTES,
    Tunnel,
    data_address,
    packet_bytes,
    way,
)
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_common.rpc.credentials import Credentials
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import SWITCH, host_name, worker_name
from kofn_common.rpc.security import CONTROLLER, channel
from kofn_common.wire.packet import WORD_BYTES

CONNECT_S = 3.0
CLOCK_MOST_S = 60.0
"""The greatest permitted difference of two clocks: times in logs should be comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteJob:
    """A worker, and the addresses of its job's other machines."""

    config: Config
    source: Path
    rank: int
    switch: str
    controller: str
    certs: Path | None
    p4runtime: str | None = None
    p4runtime_certs: Path | None = None


class RemoteChecks:
    """The checks on a worker's machine; `close` removes the tunnel that the checks have made."""

    def __init__(self, job: RemoteJob) -> None:
        self._job = job
        self._credentials: Credentials | None = None
        self._tunnel: Tunnel | None = None

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks: dict[str, Callable[[], str]] = {
            "certificates": self._certificates,
            "way": self._way,
            "tunnel": self._through_tunnel,
            "mtu": self._mtu,
            "clock": self._clock,
        }
        over_tcp: dict[str, Callable[[], Awaitable[str]]] = {
            "controller": self._controller,
            "p4runtime": self._p4runtime,
        }
        return [
            *(Check(name=name, check=functools.partial(asyncio.to_thread, check)) for name, check in checks.items()),
            *(Check(name=name, check=check) for name, check in over_tcp.items()),
        ]

    def close(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()

    def _certificates(self) -> str:
        """Check the worker's certificate (authority, validity, name), and the job's token."""
        folder, config = self._job.certs, self._job.config
        if folder is None:
            raise CheckSkipped("plaintext: no --certs")
        name = worker_name(config.job.id, self._job.rank)
        advice = f"copy ca.pem, {name}.pem, {name}.key and the job's token to {folder}: one `kofn certs` must make all"
        try:
            self._credentials = Credentials.load(folder, name, [config.job.id])
        except SecurityError as error:
            raise CheckError(str(error), advice) from None
        named = _names(folder / f"{name}.pem")
        if host_name(name) not in named:
            raise CheckError(f"{folder / name}.pem is {' and '.join(named)}'s, not {host_name(name)}'s", advice)
        return f"{host_name(name)}, of {folder}/ca.pem, and the token of job {config.job.id}"

    def _way(self) -> str:
        try:
            self._address, self._device, self._most = way(self._job.switch)
        except RunError as error:
            raise CheckError(str(error), "another --switch, a route, or a cable") from None
        return f"{self._job.switch} is {self._address}, by {self._device} (MTU {self._most})"

    def _through_tunnel(self) -> str:
        """Ping through the tunnel, with the smallest packet."""
        job = self._job
        try:
            address = data_address(job.config, job.source, job.rank)
            self._tunnel = Tunnel.to(job.switch, job.rank, address)
        except KofnError as error:
            raise CheckError(str(error), "run the check as root, on a machine for this worker alone") from None
        self._echo = Echo(address=ECHO_ADDRESS, interface=self._tunnel.interface)
        if not self._echo.comes_back(UDP_BYTES):
            alive = Echo(address=self._address).comes_back(UDP_BYTES)
            words = "answers pings itself" if alive else "answers no pings either"
            raise CheckError(
                f"nothing comes back through UDP port {TUNNEL_PORT} of {self._address}, which {words}",
                f"`kofn switch --tunnels {job.config.job.workers}` there; UDP {TUNNEL_PORT} must pass, there and back",
            )
        return f"{self._tunnel.interface}: UDP port {TUNNEL_PORT} of {self._address} and back"

    def _mtu(self) -> str:
        """Check the MTU of the whole way: packets of the job's size must pass without fragmentation."""
        words = self._job.config.job.words
        needed, most = packet_bytes(self._job.config.job), self._most - TUNNEL_BYTES
        if needed <= most and self._echo.comes_back(needed):
            outside = f"{needed + TUNNEL_BYTES} with their tunnel"
            return f"packets of {needed} bytes (job.words = {words}), {outside}, pass in one piece"
        passes = self._echo.largest(min(needed, most))
        fitting = max(0, words - -(-(needed - passes) // WORD_BYTES))
        where = f"{self._device} has MTU {self._most}" if needed > most else f"{self._device} would take them"
        raise CheckError(
            f"packets of {needed} bytes (job.words = {words}), {needed + TUNNEL_BYTES} with their tunnel, do not pass:"
            f" {passes + TUNNEL_BYTES} do; {where}",
            f"job.words up to {fitting}, or a larger MTU on the way to {self._address}"
            if fitting
            else f"a larger MTU on the way to {self._address}: no kofn packet fits",
        )

    def _clock(self) -> str:
        ahead_s = self._echo.clock_ahead_s()
        if ahead_s is None:
            raise CheckSkipped(f"{self._address} does not tell its time (ICMP)")
        words = f"the clock of {self._address} is {abs(ahead_s):.2f} s {'ahead' if ahead_s > 0 else 'behind'}"
        if abs(ahead_s) > CLOCK_MOST_S:
            raise CheckError(words, "set both clocks (NTP): certificates are valid for a limited time")
        return words

    async def _controller(self) -> str:
        """Check TCP, then TLS with the controller's name, then the token."""
        job = self._job
        await _connect(job.controller, "kofn controller")
        plan = ProbePlan(
            job=job.config.job.id,
            exact=job.config.job.exact_id,
            rank=job.rank,
            workers=job.config.job.workers,
            racks=job.config.job.racks,
            controller=job.controller,
            service=ECHO_ADDRESS,
            certs=job.certs,
        )
        try:
            async with channel(self._credentials, job.controller, CONTROLLER) as line:
                return await reach(plan, line)
        except ProbeError as error:
            raise CheckError(str(error), "the same `kofn certs` folder on all machines, or none at all") from None

    async def _p4runtime(self) -> str:
        """Check, on the controller's machine, that the switch accepts the controller's certificate."""
        job = self._job
        if job.p4runtime is None:
            raise CheckSkipped("no --p4runtime: only the controller's machine needs this check")
        await _connect(job.p4runtime, "kofn switch")
        try:
            await asyncio.wait_for(_channel(job.p4runtime, job.p4runtime_certs), CONNECT_S)
        except TimeoutError:
            raise CheckError(
                f"{job.p4runtime} does not agree on {'plaintext' if job.p4runtime_certs is None else 'TLS'}",
                "copy the client's files from the `kofn certs --p4runtime` folder that has the switch's server files",
            ) from None
        except OSError as error:
            raise CheckError(f"{error.filename}: {error.strerror}", "kofn certs --p4runtime") from None
        return f"{job.p4runtime} answers ({'plaintext' if job.p4runtime_certs is None else 'mutual TLS'})"


async def _channel(address: str, folder: Path | None) -> None:
    """Wait for a ready channel and an answer. A ready channel does not suffice, because a server checks the client's
    certificate only after the handshake."""
    client = None
    if folder is not None:
        authority, key, own = ((folder / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
        client = Credentials(name="client", authority=authority, certificate=own, key=key, tokens={})
    async with channel(client, address, SWITCH) as line:
        await line.channel_ready()
        ask: Any = line.unary_unary("/p4.v1.P4Runtime/Capabilities")
        try:
            await ask(b"", wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise TimeoutError from error


async def _connect(address: str, command: str) -> None:
    """Connect by TCP alone, which tells an absent server from a server that refuses."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except TimeoutError:
        raise CheckError(
            f"{address}: no answer for {CONNECT_S:.0f} s", f"TCP port {port} must pass to {host}"
        ) from None
    except ConnectionRefusedError:
        raise CheckError(
            f"{address}: no process listens", f"start `{command}` there, at an address that this machine reaches"
        ) from None
    except (socket.gaierror, ValueError, OSError) as error:
        raise CheckError(f"{address}: {error}", "the address must be HOST:PORT") from None
    writer.close()


def _names(path: Path) -> list[str]:
    """Return the DNS names in a certificate."""
    from cryptography import x509  # noqa: PLC0415  # needs kofn[certs]

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return found.value.get_values_for_type(x509.DNSName)
