"""The controller's side of P4Runtime: pipeline, entries, k, digests, counters.

    slots = Slots(layout=layout, k=4, on_arrival=take)
    link = SwitchLink(address="127.0.0.1:50051", device_id=0, program=Program(), jobs=[slots])
    task = asyncio.create_task(link.run())
    await link.ready.wait()
    await slots.admit(generation, k)

One connection for all jobs. Connecting (at first, or again because the switch restarted or the connection broke) pushes
the pipeline only where the switch does not run it, and brings the switch's entries to what they should be. Each job is
then told what the switch had of it. Knows nothing of how k is chosen.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import finsy as fy
from finsy.proto import p4r

from kofn.controller.errors import PushError
from kofn.controller.estimate.measurements import Arrival
from kofn.controller.p4runtime.entries import COUNTER, DIGEST, VERDICT_TYPE, digest_entry, find_jobs, fixed_entries
from kofn.controller.p4runtime.program import (
    HANDSHAKE_S,
    CompiledProgram,
    SwitchCredentials,
    check_primary,
    ensure,
    read,
    read_all,
)
from kofn.controller.p4runtime.slots import Slots
from kofn.controller.p4runtime.updates import describe, difference

_LOG = logging.getLogger(__name__)

RETRY_S = 0.25
RETRY_MAX_S = 0.5  # the job stands still meanwhile
COUNTERS_EVERY_S = 1.0
_DIGEST_QUEUE = 1024


@dataclass(slots=True, kw_only=True)
class SwitchLink:
    """Keeps one switch as it should be, across restarts of the switch."""

    address: str
    device_id: int
    program: CompiledProgram
    jobs: Sequence[Slots]
    credentials: SwitchCredentials = None
    counters: dict[str, int] = field(default_factory=dict)  # packets by verdict
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""  # why it is not connected
    _switch: fy.Switch | None = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # an installation reads before it writes
    _retry_s: float = RETRY_S
    _overheard: "_Overheard" = field(init=False)

    def __post_init__(self) -> None:
        self._overheard = _Overheard()
        for slots in self.jobs:
            slots.write, slots.away = self._write, self._away

    @property
    def connected(self) -> bool:
        """True while the switch is installed and answers."""
        return self._switch is not None

    def _away(self) -> str:
        """Why there is no switch at this moment; empty: there is one."""
        return "" if self.connected else f"the switch does not answer ({self.fault or 'not connected yet'})"

    async def run(self) -> None:
        """Connect, install and serve, again and again, until cancelled."""
        finsy_log = logging.getLogger("finsy")
        finsy_log.setLevel(logging.CRITICAL)
        finsy_log.propagate = False
        finsy_log.addHandler(self._overheard)
        while True:
            try:
                with self._cancelled_only_by_us():
                    await self._connect()
            except (fy.P4ClientError, PushError, OSError, TimeoutError, RuntimeError, ValueError) as error:
                self._failed(_one_line(error))
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def _write(self, slots: Slots) -> None:
        """Bring one job's entry into the switch; without one nothing: it comes with the next installation."""
        async with self._writing:
            if self._switch is None or not self._switch.is_primary or not slots.generation:
                return  # (a generation may be lost while its write waits)
            schema = self._switch.p4info
            try:
                with self._cancelled_only_by_us():
                    await self._put(self._switch, slots)
            except fy.P4ClientError as error:
                raise PushError(describe(error, schema)) from error
            except AssertionError as error:  # what finsy says while it closes its client
                raise PushError("the connection to the switch broke") from error

    async def _put(self, switch: fy.Switch, slots: Slots) -> None:
        """Another k is one MODIFY; a new generation takes the place of whatever entry there is."""
        entries, k = slots.entries(), slots.k  # another k may be wanted when the answer is here
        if slots.tried:
            await switch.modify(entries[:1])
        else:
            slots.tried = True  # from here on it may be there, even if the answer is lost
            await switch.delete(entries, strict=False)
            await switch.insert(entries)
        slots.confirm(k)

    async def _connect(self) -> None:
        """One connection, from handshake to its end."""
        if await ensure(self.program, self.address, self.device_id, self.credentials):
            _LOG.info("switch %s: program pushed", self.address)
        options = self.program.options(self.device_id, force=False, credentials=self.credentials)
        switch = fy.Switch("switch", self.address, options)
        switch.ee.add_listener(fy.SwitchEvent.STREAM_ERROR, _log_stream_error)
        self._overheard.error = None
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(HANDSHAKE_S):
                await stack.enter_async_context(switch)
            check_primary(switch)
            await self._serve(switch)

    @contextlib.contextmanager
    def _cancelled_only_by_us(self) -> Iterator[None]:
        """Turn a CancelledError that no caller asked for into a PushError.

        A gRPC call whose channel closes cancels the task that awaits it, and so does finsy when a task of its own
        fails.
        """
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError as error:
            if task.cancelling() > before:
                raise
            cause = self._overheard.error
            raise PushError(_one_line(cause) if cause else "the connection to the switch broke") from error

    async def _serve(self, switch: fy.Switch) -> None:
        """Install, then listen until the channel goes down."""
        down = switch.ee.event_future(fy.SwitchEvent.CHANNEL_DOWN)
        tasks = [asyncio.create_task(self._listen(switch))]
        try:
            await asyncio.sleep(0)  # the digest queue is open before the first digest can come
            await self._install(switch)
            tasks += [asyncio.create_task(self._keep_counting()), asyncio.create_task(self._stay_installed(switch))]
            done, _ = await asyncio.wait([down, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise PushError("the connection to the switch broke")
        finally:
            self._switch = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _install(self, switch: fy.Switch) -> None:
        """Bring the switch's entries to what they should be, then switch digests on, then tell the jobs."""
        async with self._writing:
            try:
                present = await read_all(switch)
                found = find_jobs(present, switch.p4info)
                layouts = [slots.layout for slots in self.jobs]
                wanted = [
                    *fixed_entries(layouts),
                    *(e for slots in self.jobs for e in slots.prepare(found.get(slots.job))),
                ]
                written = [(slots, slots.k) for slots in self.jobs if slots.generation]
                updates = difference(present, wanted, switch.p4info)
                await switch.write(updates)
                await switch.delete([digest_entry(layouts)], strict=False)
                await switch.insert([digest_entry(layouts)])
            except fy.P4ClientError as error:
                raise PushError(describe(error, switch.p4info)) from error
            self._switch, self.fault, self._retry_s = switch, "", RETRY_S
        _LOG.info("switch %s: installed (%d updates, %d entries)", self.address, len(updates), len(wanted))
        latest = max((entry.generation for entry in found.values()), default=0)
        for slots, k in written:
            slots.confirm(k)
        for slots in self.jobs:
            slots.latest = max(slots.latest, latest)
            slots.tell()
        self.ready.set()

    async def _stay_installed(self, switch: fy.Switch) -> None:
        """Install everything again after another client was primary: a person with a shell may have left anything
        behind.
        """
        while True:
            await switch.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
            await self._install(switch)

    async def _listen(self, switch: fy.Switch) -> None:
        names = verdict_names(switch.p4info)
        jobs = {slots.job: slots for slots in self.jobs}
        async for digests in switch.read_digests(DIGEST, queue_size=_DIGEST_QUEUE):
            for arrival in digests:
                if arrival["job"] in jobs:
                    jobs[arrival["job"]].on_arrival(_arrival(arrival, names))

    async def count(self) -> dict[str, int]:
        """Read the counters: packets by verdict. PushError while there is no switch."""
        if self._switch is None:
            raise PushError(f"switch {self.address} is not connected")
        names = verdict_names(self._switch.p4info)
        entries = [entry async for entry in read(self._switch, [fy.P4CounterEntry(COUNTER)])]
        return {names[entry.index]: entry.packet_count for entry in entries if entry.index in names}

    async def _keep_counting(self) -> None:
        """Read the counters now and then."""
        while True:
            self.counters = await self.count()
            await asyncio.sleep(COUNTERS_EVERY_S)

    def _failed(self, fault: str) -> None:
        """Log a new reason, once."""
        if fault != self.fault:
            self.fault = fault
            _LOG.warning("switch %s: %s; trying again", self.address, fault)


class _Overheard(logging.Handler):
    """Keeps the error of a failed task of finsy's, which reaches its log and nothing else."""

    error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.error = record.exc_info[1]


def verdict_names(schema: fy.P4Schema) -> dict[int, str]:
    """Verdicts by value, from p4info."""
    return {value: name for name, value in schema.type_info.serializable_enums[VERDICT_TYPE].members.items()}


def _arrival(fields: dict[str, int], names: dict[int, str]) -> Arrival:
    """A digest's values as our type."""
    return Arrival(
        worker=fields["worker"],
        iteration=fields["iteration"],
        verdict=names.get(fields["verdict"], str(fields["verdict"])),
        timestamp_us=fields["timestamp"],
    )


def _log_stream_error(_switch: fy.Switch, message: p4r.StreamMessageResponse) -> None:
    """The switch could not use a message of ours."""
    _LOG.warning("switch: stream error %s: %s", message.error.canonical_code, message.error.message)


def _one_line(error: BaseException) -> str:
    """A reason without line breaks; of a failed connection only its last cause, which names no address twice."""
    if not isinstance(error, fy.P4ClientError):
        return " ".join(str(error).split()) or type(error).__name__
    message = error.message.rpartition(": ")[2] if error.code == fy.GRPCStatusCode.UNAVAILABLE else error.message
    return f"{error.code.name}: {' '.join(message.split())}"
