"""The checks of `kofn doctor` during a run: they check the run's controller, switch and workers, and make no network
and no process."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from kofn.doctor.checks import Check, CheckError, CheckSkipped
from kofn.run.controller_client import AWAY
from kofn.run.state import Running
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.failures import refused_handshake
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel

CALL_S = 3.0
MOVING_S = 3.0
POLL_S = 0.25
START_S = 30.0
"""The time that a run may take to start, or to begin its next trial."""


class NotYetError(CheckError):
    """A part of a run is missing, as happens while the run starts and between two trials."""


class RunningChecks:
    """The checks of a run that another process carries out."""

    def __init__(self, run: Running) -> None:
        self._run, self._folder = run, Path(run.folder)
        self._statuses: list[kofn_pb2.Status] = []
        """The jobs' statuses."""

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks: dict[str, Callable[[], Awaitable[str]]] = {
            "run": self._configuration,
            "controller": self._controller,
            "switch": self._switch,
            "workers": self._workers,
            "progress": self._progress,
        }
        return [Check(name=name, check=functools.partial(self._patiently, check)) for name, check in checks.items()]

    async def _patiently(self, check: Callable[[], Awaitable[str]]) -> str:
        """Return a check's answer; wait for missing parts. Raise CheckSkipped if the run has ended."""
        deadline = time.monotonic() + START_S
        while self._run.alive():
            try:
                return await check()
            except NotYetError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_S)
        raise CheckSkipped("the run has just ended")

    async def _configuration(self) -> str:
        """Check that the run has written its configuration."""
        files = sorted(self._folder.glob("*effective.toml"))
        if not files:
            raise NotYetError(f"pid {self._run.pid} has not written {self._folder} yet", "kofn stop ends that run")
        try:
            network = Config.load(files[0]).network
        except ConfigError as error:
            raise CheckError(str(error), "kofn stop ends that run") from None
        self._address = f"127.0.0.1:{network.controller_port}"
        self._certs = self._folder / "certs" if network.tls else None
        return f"pid {self._run.pid}, {self._folder}: no network is made, the run's network is checked"

    async def _controller(self) -> str:
        """Check that the controller answers the operator about each of its jobs."""
        first = await self._status(0)
        self._statuses = [first, *[await self._status(job) for job in first.jobs if job != first.job]]
        jobs = ", ".join(str(status.job) for status in self._statuses)
        return (
            f"{self._address} answers ({'plaintext' if self._certs is None else 'certificate and token'}), job {jobs}"
        )

    async def _status(self, job: int) -> kofn_pb2.Status:
        """Return a job's status. Raise CheckError with the reason if there is no status."""
        try:
            credentials = Credentials.load(self._certs, OPERATOR)
            async with channel(credentials, self._address, CONTROLLER) as line:
                request = kofn_pb2.StatusRequest(job=job)
                answer: kofn_pb2.Status = await kofn_pb2_grpc.InspectorStub(line).GetStatus(request, timeout=CALL_S)
                return answer
        except SecurityError as error:
            raise NotYetError(str(error), "certificates live as long as their run: has it just ended?") from None
        except grpc.aio.AioRpcError as error:
            reason = refused_handshake(error, secure=self._certs is not None)
            advice = f"see controller.log below {self._folder}"
            if reason is None and error.code() in AWAY:
                raise NotYetError(f"{self._address}: no answer", advice) from None
            detail = f"{self._address}: {reason or f'{error.code().name}: {error.details()}'}"
            raise CheckError(detail, advice) from None

    async def _switch(self) -> str:
        """Check that the controller is connected to the switch, and return the switch's counts."""
        status = await self._status(0)
        if not status.switch_connected:
            away = [f"{switch.name} {switch.address}" for switch in status.tree if not switch.connected]
            detail = f"the controller has no connection to {', '.join(away) or status.switch_address}"
            raise NotYetError(detail, f"see the logs of switch and controller below {self._folder}")
        counted = [f"{verdict} {number}" for verdict, number in sorted(status.counters.items()) if number]
        connected = [f"{switch.name} {switch.address}" for switch in status.tree] or [status.switch_address]
        return f"{', '.join(connected)} is connected; counted: {', '.join(counted) or 'nothing yet'}"

    async def _workers(self) -> str:
        self._statuses = [await self._status(status.job) for status in self._statuses]
        missing = [
            f"worker {worker.rank} of job {status.job} ({worker.state or 'not live'})"
            for status in self._statuses
            for worker in status.worker
            if not worker.live and worker.state != "finished"
        ]
        if missing:
            waiting = "".join(f"; {status.waiting}" for status in self._statuses if status.waiting)
            starting = any(status.iteration == 0 for status in self._statuses)
            failure = NotYetError if starting else CheckError
            raise failure(f"{', '.join(missing)}{waiting}", f"see worker-R.log below {self._folder}")
        return (
            ", ".join(f"{status.live} of {status.workers} of job {status.job}" for status in self._statuses) + " live"
        )

    async def _progress(self) -> str:
        moved = []
        for before in [await self._status(status.job) for status in self._statuses]:
            status = before
            for _ in range(int(MOVING_S / POLL_S)):
                if status.iteration != before.iteration:  # less, if the next trial has begun
                    break
                await asyncio.sleep(POLL_S)
                status = await self._status(before.job)
            else:
                waiting = status.waiting or "the reason is unknown"
                detail = f"job {status.job} stays at iteration {status.iteration} for {MOVING_S:.0f} s: {waiting}"
                raise CheckError(detail, "kofn status, kofn lambda: which worker is silent?")
            moved.append(f"job {status.job}: iteration {before.iteration} -> {status.iteration}, k = {status.k}")
        return "; ".join(moved)
