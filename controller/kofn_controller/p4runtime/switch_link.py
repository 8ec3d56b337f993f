"""The controller's side of P4Runtime: pipeline, entries, k, digests, counters.

    slots = Slots(layout=layout, k=4, on_arrival=take)
    link = SwitchLink(address="127.0.0.1:50051", device_id=0, plane=KofnPlane(), jobs=[slots])
    task = asyncio.create_task(link.run())
    await link.ready.wait()
    await slots.admit(generation, k)

All jobs share one connection to a switch. After each new connection, also after a restart of the switch, the link
pushes the pipeline if the switch does not run it, and corrects the switch's entries. Then it tells each job which entry
the switch had for the job. The module does not know how k is chosen.
"""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import finsy as fy
from finsy.proto import p4r

from kofn_controller.errors import EntryError, PushError
from kofn_controller.p4runtime.builders import SwitchEntry
from kofn_controller.p4runtime.data_plane import DataPlane
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.program import HANDSHAKE_S, SwitchCredentials, check_primary, ensure, read_all
from kofn_controller.p4runtime.roles import ONLY_SWITCH, SwitchRole
from kofn_controller.p4runtime.slots import JobSlots
from kofn_controller.p4runtime.topology import TopologyHost
from kofn_controller.p4runtime.updates import describe, difference, refused

_LOG = logging.getLogger(__name__)

RETRY_S = 0.25
RETRY_MAX_S = 0.5  # short, because jobs cannot progress meanwhile
COUNTERS_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class SwitchLink:
    """Keeps the entries of one switch correct, across its restarts."""

    address: str
    device_id: int
    plane: DataPlane
    jobs: Sequence[JobSlots]
    role: SwitchRole = ONLY_SWITCH
    credentials: SwitchCredentials = None
    counters: dict[str, int] = field(default_factory=dict)  # packets by the plane's names
    refused: dict[str, int] = field(default_factory=dict)  # packets by the port that they came from
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""  # why the link is not connected
    _switch: fy.Switch | None = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during each read and write of an installation
    _retry_s: float = RETRY_S
    _overheard: "_Overheard" = field(init=False)
    _held: Sequence[JobSlots] = field(init=False)  # the jobs whose entries have k and the generation

    def __post_init__(self) -> None:
        self._overheard = _Overheard()
        self._held = self.jobs if self.plane.holds_k else ()
        for slots in self._held:
            slots.write, slots.away = self._write, self._away

    @property
    def connected(self) -> bool:
        """Whether the switch answers and has all entries."""
        return self._switch is not None

    def _away(self) -> str:
        """Return why the switch does not answer; empty if it does."""
        return "" if self.connected else f"{self.role.name} does not answer ({self.fault or 'not connected yet'})"

    async def run(self) -> None:
        """Connect, install and serve, until cancelled; retry after each failure.

        EntryError if the first installation fails because of the data plane's entries.
        """
        finsy_log = logging.getLogger("finsy")
        finsy_log.setLevel(logging.CRITICAL)
        finsy_log.propagate = False
        finsy_log.addHandler(self._overheard)
        while True:
            try:
                with self._closing_named():
                    await self._connect()
            except (fy.P4ClientError, PushError, OSError, TimeoutError, RuntimeError, ValueError) as error:
                if isinstance(error, EntryError) and not self.ready.is_set():
                    raise
                self._failed(_one_line(error))
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def _write(self, slots: JobSlots) -> None:
        """Write one job's entries to the switch. Without a connection the next installation writes them."""
        async with self._writing:
            if self._switch is None or not self._switch.is_primary or not slots.wanted.generation:
                return  # the generation may have been lost while the write waited
            schema = self._switch.p4info
            try:
                with self._closing_named():
                    await self._put(self._switch, slots)
            except fy.P4ClientError as error:
                raise PushError(describe(error, schema)) from error

    async def _put(self, switch: fy.Switch, slots: JobSlots) -> None:
        """Write a job's entry: by one MODIFY if only k has changed; a new generation's entry replaces the old entry."""
        wanted = slots.wanted  # a copy: the session may change it before the answer comes
        entries = self.plane.job_entries(slots.layout, *wanted, self.role)
        if slots.tried:
            await switch.modify(entries[:1])
        else:
            slots.tried = True  # from now on the switch may have the entry, even if its answer is lost
            await switch.delete(entries, strict=False)
            await switch.insert(entries)
        await self._put_group(switch, slots)
        slots.confirm(wanted.k)

    async def _put_group(self, switch: fy.Switch, slots: JobSlots) -> None:
        """Send a job's results to all workers but those that follow a peer."""
        followers = slots.followers
        if slots.grouped != followers:
            await switch.modify(self.plane.groups(slots.layout, followers, self.role))
            slots.grouped = followers

    async def _connect(self) -> None:
        """Make one connection, and serve until it ends."""
        program = self.plane.compiled
        if await ensure(program, self.address, self.device_id, self.credentials):
            _LOG.info("%s at %s: program pushed", self.role.name, self.address)
        options = program.options(self.device_id, force=False, credentials=self.credentials)
        switch = fy.Switch("switch", self.address, options)
        switch.ee.add_listener(fy.SwitchEvent.STREAM_ERROR, _log_stream_error)
        self._overheard.error = None
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(HANDSHAKE_S):
                await stack.enter_async_context(switch)
            check_primary(switch)
            await self._serve(switch)

    @contextlib.contextmanager
    def _closing_named(self) -> Iterator[None]:
        """Turn the errors of a connection that closes meanwhile into PushErrors.

        When a channel closes, gRPC cancels the task that awaits a call on this channel. When one of finsy's tasks
        fails, finsy cancels the task that uses the switch. When finsy has closed its client, and before it says so,
        each call fails finsy's own assertion that the client is open.
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
            raise PushError(_one_line(cause) if cause else self._broke()) from error
        except AssertionError as error:
            if not _of_finsy(error):
                raise
            raise PushError(self._broke()) from error

    def _broke(self) -> str:
        return f"the connection to {self.role.name} broke"

    async def _serve(self, switch: fy.Switch) -> None:
        """Install, then listen until the channel goes down."""
        down = switch.ee.event_future(fy.SwitchEvent.CHANNEL_DOWN)
        tasks = [asyncio.create_task(self.plane.listen(switch, self.jobs))]
        try:
            await asyncio.sleep(0)  # opens the digest queue before the first digest can come
            await self._install(switch)
            tasks += [asyncio.create_task(self._keep_counting()), asyncio.create_task(self._stay_installed(switch))]
            done, _ = await asyncio.wait([down, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise PushError(self._broke())
        finally:
            self._switch = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _install(self, switch: fy.Switch) -> None:
        """Correct the switch's entries, then enable digests, then tell the jobs."""
        async with self._writing:
            try:
                self._check_counters(switch.p4info)
                present = await read_all(switch)
                found = self.plane.found(present, switch.p4info)
                layouts = [slots.layout for slots in self.jobs]
                entries = [(slots.layout, slots.prepare(found.get(slots.layout.job.id))) for slots in self._held]
                wanted = [
                    *self._entries(layouts),
                    *(
                        entry
                        for layout, content in entries
                        if content is not None
                        for entry in self.plane.job_entries(layout, *content, self.role)
                    ),
                ]
                written = [(slots, slots.wanted.k) for slots in self._held if slots.wanted.generation]
                updates = difference(present, wanted, switch.p4info)
                await switch.write(updates)
                for slots in self._held:
                    slots.grouped = frozenset()
                    await self._put_group(switch, slots)
                for digest in self.plane.digests(layouts):
                    await switch.delete([digest], strict=False)
                    await switch.insert([digest])
            except fy.P4ClientError as error:
                raise refused(error, switch.p4info) from error
            self._switch, self.fault, self._retry_s = switch, "", RETRY_S
        _LOG.info(
            "%s at %s: installed (%d updates, %d entries)", self.role.name, self.address, len(updates), len(wanted)
        )
        latest = max((entry.generation for entry in found.values()), default=0)
        for slots, k in written:
            slots.confirm(k)
        for slots in self._held:
            slots.tell(latest)
        self.ready.set()

    def _check_counters(self, schema: fy.P4Schema) -> None:
        """Raise EntryError if the program lacks a counter of the plane."""
        try:
            for name in self.plane.counters:
                schema.counters[name]
        except ValueError as error:
            raise EntryError(f"counters of {type(self.plane).__name__} do not fit the P4 program: {error}") from error

    def _entries(self, layouts: Sequence[SlotLayout]) -> list[SwitchEntry]:
        """Return the plane's entries; EntryError if the plane, which may be a user's code, fails."""
        try:
            return list(self.plane.entries(layouts, self.role))
        except Exception as error:
            name = f"{type(self.plane).__name__}.entries"
            _LOG.exception("%s failed", name)
            raise EntryError(f"{name} failed: {type(error).__name__}: {error} (traceback above)") from error

    async def _stay_installed(self, switch: fy.Switch) -> None:
        """Install everything again whenever this client becomes primary again: another client may have changed
        entries."""
        while True:
            await switch.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
            await self._install(switch)

    async def count(self) -> dict[str, int]:
        """Read the counters: packets by the plane's names. PushError while there is no switch."""
        if self._switch is None:
            raise PushError(f"{self.role.name} at {self.address} is not connected")
        return await self.plane.count(self._switch)

    async def recount(self) -> None:
        """Read the counters now, if the switch answers."""
        with contextlib.suppress(PushError, fy.P4ClientError), self._closing_named():
            await self._recount()

    async def _keep_counting(self) -> None:
        """Read the counters every COUNTERS_EVERY_S."""
        while True:
            await self._recount()
            await asyncio.sleep(COUNTERS_EVERY_S)

    async def _recount(self) -> None:
        self.counters = await self.count()
        if self._switch is not None:
            names = senders(self.jobs[0].layout.hosts, self.role)
            counts = await self.plane.refused(self._switch, names)
            self.refused = {names[port]: packets for port, packets in counts.items() if packets}

    def _failed(self, fault: str) -> None:
        """Log a fault if it is new."""
        if fault != self.fault:
            self.fault = fault
            _LOG.warning("%s at %s: %s; trying again", self.role.name, self.address, fault)


def senders(hosts: Sequence[TopologyHost], role: SwitchRole) -> dict[int, str]:
    """Return what each port of a switch leads to, in words: a host, or several hosts behind another switch."""
    behind: dict[int, list[str]] = {}
    for host in hosts:
        behind.setdefault(role.port(host), []).append(host.name)
    switch = "" if role is ONLY_SWITCH else f" of {role.name}"
    return {
        port: f"{names[0] if len(names) == 1 else f'{names[0]} to {names[-1]}'} at port {port}{switch}"
        for port, names in behind.items()
    }


class _Overheard(logging.Handler):
    """Keeps the error of finsy's latest failed task, which finsy only logs."""

    error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.error = record.exc_info[1]


def _of_finsy(error: AssertionError) -> bool:
    """Return whether finsy's code raised the error."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("finsy.")


def _log_stream_error(_switch: fy.Switch, message: p4r.StreamMessageResponse) -> None:
    """Log that the switch refused a message of this client's stream."""
    _LOG.warning("switch: stream error %s: %s", message.error.canonical_code, message.error.message)


def _one_line(error: BaseException) -> str:
    """Return an error's message without line breaks. For a failed connection, return only the last cause, because the
    earlier causes repeat the address.
    """
    if not isinstance(error, fy.P4ClientError):
        return " ".join(str(error).split()) or type(error).__name__
    message = error.message.rpartition(": ")[2] if error.code == fy.GRPCStatusCode.UNAVAILABLE else error.message
    return f"{error.code.name}: {' '.join(message.split())}"
