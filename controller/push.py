"""The controller's side of P4Runtime: pipeline, entries, k, digests, counters.

    link = SwitchLink(address="127.0.0.1:50051", device_id=0, program=Program(), layout=layout, on_arrival=take)
    task = asyncio.create_task(link.run())
    await link.ready.wait()
    await link.set_k(3)

The first connection pushes the pipeline, which empties every slot; a later one (the switch restarted, or the connection
broke) pushes it only where the switch has lost it. Either then brings the switch's entries to what they should be.
Knows nothing of how k is chosen.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import finsy as fy
from finsy.proto import p4r

from controller.entries import COUNTER, DIGEST, VERDICT_TYPE, Layout, all_entries, digest_entry, job_entry
from controller.errors import PushError
from controller.measure import Arrival
from controller.updates import describe, difference

_LOG = logging.getLogger(__name__)

RETRY_S = 0.25
RETRY_MAX_S = 2.0
HANDSHAKE_S = 30.0
COUNTERS_EVERY_S = 1.0
_DIGEST_QUEUE = 1024

_BUILD = Path(__file__).parents[1] / "p4src" / "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The compiled P4 program."""

    p4info: Path = _BUILD / "kofn.p4info.txtpb"
    blob: Path = _BUILD / "kofn.json"

    def options(self, device_id: int, *, force: bool) -> fy.SwitchOptions:
        """How finsy shall connect; PushError names a file that is not there."""
        for path in (self.p4info, self.blob):
            if not path.is_file():
                raise PushError(f"{path}: no such file; `make p4` builds it where p4c is installed")
        return fy.SwitchOptions(p4info=self.p4info, p4blob=self.blob, p4force=force, device_id=device_id)


@dataclass(slots=True, kw_only=True)
class SwitchLink:
    """Keeps one switch as it should be, across restarts of the switch."""

    address: str
    device_id: int
    program: Program
    layout: Layout
    k: int
    on_arrival: Callable[[Arrival], object] = lambda arrival: None
    counters: dict[str, int] = field(default_factory=dict)  # packets by verdict
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""  # why it is not connected
    _switch: fy.Switch | None = None
    _pushed: bool = False
    _retry_s: float = RETRY_S
    _overheard: "_Overheard" = field(init=False)

    def __post_init__(self) -> None:
        """Not connected yet."""
        self._overheard = _Overheard()

    @property
    def connected(self) -> bool:
        """True while the switch is installed and answers."""
        return self._switch is not None

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

    async def set_k(self, k: int) -> None:
        """Put k into force, at once or when the switch is back and ours. PushError where it refuses."""
        self.k = k
        if self._switch is None or not self._switch.is_primary:
            return
        schema = self._switch.p4info
        try:
            with self._cancelled_only_by_us():
                await self._switch.modify([job_entry(self.layout.job, k)])
        except fy.P4ClientError as error:
            raise PushError(describe(error, schema)) from error
        except AssertionError as error:  # what finsy says while it closes its client
            raise PushError("the connection to the switch broke") from error

    async def _connect(self) -> None:
        """One connection, from handshake to its end."""
        if not self._pushed:
            await self._push()
        switch = fy.Switch("switch", self.address, self.program.options(self.device_id, force=False))
        switch.ee.add_listener(fy.SwitchEvent.STREAM_ERROR, _log_stream_error)
        self._overheard.error = None
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(HANDSHAKE_S):
                await stack.enter_async_context(switch)
            _check_primary(switch)
            await self._serve(switch)

    async def _push(self) -> None:
        """Push the pipeline: every slot is empty then.

        In a connection of its own, because finsy would push again whenever a longer one becomes primary again.  The
        multicast groups are deleted before: BMv2 keeps them through a push but forgets having them, so inserting one
        again would double its replicas.
        """
        before = fy.Switch("switch", self.address, fy.SwitchOptions(device_id=self.device_id))
        async with asyncio.timeout(HANDSHAKE_S), before as switch:
            _check_primary(switch)
            if switch.p4info.exists:
                groups = [group async for group in _read(switch, [fy.P4MulticastGroupEntry()])]
                await switch.delete(groups, strict=False)
        pushing = fy.Switch("switch", self.address, self.program.options(self.device_id, force=True))
        async with asyncio.timeout(HANDSHAKE_S), pushing as switch:
            _check_primary(switch)
        self._pushed = True

    @contextlib.contextmanager
    def _cancelled_only_by_us(self) -> Iterator[None]:
        """Turn a CancelledError that nobody asked for into a PushError.

        A gRPC call whose channel closes, and finsy when a task of its own fails, cancel whoever awaits them.
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
        """Bring the switch's entries to what they should be, then switch digests on."""
        try:
            wanted = all_entries(self.layout, self.k)
            updates = difference(await read_all(switch), wanted, switch.p4info)
            await switch.write(updates)
            await switch.delete([digest_entry(self.layout)], strict=False)
            await switch.insert([digest_entry(self.layout)])
        except fy.P4ClientError as error:
            raise PushError(describe(error, switch.p4info)) from error
        self._switch, self.fault, self._retry_s = switch, "", RETRY_S
        self.ready.set()
        _LOG.info("switch %s: installed (%d of %d entries were missing)", self.address, len(updates), len(wanted))

    async def _stay_installed(self, switch: fy.Switch) -> None:
        """Whoever was primary for a while (a person with a shell) may have left anything behind."""
        while True:
            await switch.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
            await self._install(switch)

    async def _listen(self, switch: fy.Switch) -> None:
        """Pass arrivals on."""
        names = verdict_names(switch.p4info)
        async for digests in switch.read_digests(DIGEST, queue_size=_DIGEST_QUEUE):
            for arrival in digests:
                if arrival["job"] == self.layout.job.id:
                    self.on_arrival(_arrival(arrival, names))

    async def count(self) -> dict[str, int]:
        """Read the counters: packets by verdict. PushError while there is no switch."""
        if self._switch is None:
            raise PushError(f"switch {self.address} is not connected")
        names = verdict_names(self._switch.p4info)
        entries = [entry async for entry in _read(self._switch, [fy.P4CounterEntry(COUNTER)])]
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
        """Remember the latest."""
        if record.exc_info and record.exc_info[1]:
            self.error = record.exc_info[1]


def _check_primary(switch: fy.Switch) -> None:
    """PushError when another controller has the switch."""
    if not switch.is_primary:
        raise PushError(f"another controller with election id {switch.primary_id} is primary")


def verdict_names(schema: fy.P4Schema) -> dict[int, str]:
    """Verdicts by value, from p4info."""
    return {value: name for name, value in schema.type_info.serializable_enums[VERDICT_TYPE].members.items()}


async def read_all(switch: fy.Switch) -> list[Any]:
    """All table entries and multicast groups but for the program's own, which nobody can change."""
    everything = [entity async for entity in _read(switch, [fy.P4TableEntry(), fy.P4MulticastGroupEntry()])]
    return [entity for entity in everything if not _is_fixed(entity, switch.p4info)]


def _is_fixed(entity: Any, schema: fy.P4Schema) -> bool:
    """True for default actions and for entries of constant tables (BMv2 does not mark those themselves)."""
    if not isinstance(entity, fy.P4TableEntry):
        return False
    return entity.is_default_action or schema.tables[entity.table_id].is_const


def _read(switch: fy.Switch, kinds: list[Any]) -> AsyncIterator[Any]:
    """Entities of these kinds; finsy's own annotation says coroutine where it has an async generator."""
    return cast(AsyncIterator[Any], switch.read(kinds))


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
