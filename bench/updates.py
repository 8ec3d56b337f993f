"""Table updates at a given rate while packets run, as a controller makes them, and the tables' content then."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import finsy as fy

from kofn.experiments.load.targets import DEVICE_ID, GENERATION, LoadTarget, layout
from kofn_controller.p4runtime.entries import JOBS, job_entries
from kofn_controller.p4runtime.program import CompiledProgram

VARIANT = 0x0100
"""Difference between a host's addresses and its other ones, in MAC and IP address alike."""
PASSING_MAC = 0x080000010000
HOSTS = "egress.deliver.hosts"
L2 = "ingress.forward.l2"
TABLES = (JOBS, HOSTS, L2)


@dataclass(slots=True, kw_only=True)
class Updates:
    """The updates that were made, and how long each took.

    By turns: the job's k (all workers, or all but one), a worker's addresses (both at once, or a result would be to
    the MAC of one entry and the IP address of another), an entry that comes and goes.
    """

    switch: fy.Switch
    workers: int
    made: int = 0
    took_ms: list[float] = field(default_factory=list)

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Until `stop`, `rate` a second; what the switch was late with is made up for."""
        begin, done = time.monotonic(), 0
        while not stop.is_set():
            started = time.monotonic()
            await self._update(self.made)
            self.took_ms.append(1e3 * (time.monotonic() - started))
            self.made, done = self.made + 1, done + 1
            await asyncio.sleep(max(0.0, begin + done / rate - time.monotonic()))

    async def _update(self, number: int) -> None:
        kind, turn = number % 3, number // 3
        if kind == 0:
            await self.switch.modify([self._job(turn)])
        elif kind == 1:
            await self.switch.modify([self._host(turn)])
        elif turn % 2 == 0:
            await self.switch.insert([self._passing()])
        else:
            await self.switch.delete([self._passing()])

    def _job(self, turn: int) -> fy.P4TableEntry:
        return job_entries(layout(self.workers), self.workers - turn % 2, GENERATION)[0]

    def _host(self, turn: int) -> fy.P4TableEntry:
        port, other = turn % self.workers + 1, turn // self.workers % 2 * VARIANT
        addresses = {
            "mac": 0x080000000000 + port + other,
            "ip": 0x0A000000 + port + other,
            "rack": 0,
            "worker": port - 1,
        }
        match = fy.P4TableMatch({"standard_metadata.egress_port": port, "hdr.kofn.job": 1})
        return fy.P4TableEntry(HOSTS, match=match, action=fy.P4TableAction("egress.deliver.to_host", **addresses))

    def _passing(self) -> fy.P4TableEntry:
        match = fy.P4TableMatch({"hdr.ethernet.dst_addr": PASSING_MAC})
        return fy.P4TableEntry(L2, match=match, action=fy.P4TableAction("ingress.forward.to_port", port=1))

    async def differences(self) -> list[str]:
        """Return the entries that a read shows and that were not written last."""
        # finsy's annotation of `read` says it gives a coroutine; it is an asynchronous generator.
        present = cast(AsyncIterator[Any], self.switch.read([fy.P4TableEntry(name) for name in TABLES]))
        found = {self._match(entry): entry async for entry in present}
        wanted = {self._match(entry): entry for entry in self._written()}
        wrong = [
            f"{found.get(match)} is in the switch, not {entry}"
            for match, entry in wanted.items()
            if match not in found or self._action(found[match]) != self._action(entry)
        ]
        there = self._match(self._passing()) in found
        if there != (self.made // 3 % 2 == 1):
            wrong.append(f"{self._passing()} is {'' if there else 'not '}in the switch")
        return wrong

    def _match(self, entry: fy.P4TableEntry) -> tuple[int, bytes]:
        """Return the part of an entry that identifies it."""
        message = entry.encode(self.switch.p4info).table_entry
        return message.table_id, _in_any_order(message.match)

    def _action(self, entry: fy.P4TableEntry) -> tuple[int, bytes]:
        """With its parameters, in whatever order they are."""
        action = entry.encode(self.switch.p4info).table_entry.action.action
        return action.action_id, _in_any_order(action.params)

    def _written(self) -> Iterator[fy.P4TableEntry]:
        """The last of every kind, in order of writing."""
        for turn in range(max(0, self.made // 3 - 2 * self.workers), (self.made + 2) // 3):
            yield self._job(turn)
            if 3 * turn + 1 < self.made:
                yield self._host(turn)


def _in_any_order(messages: Iterable[Any]) -> bytes:
    return b"".join(sorted(message.SerializeToString() for message in messages))


def connected(target: LoadTarget) -> fy.Switch:
    """A controller of a running target, which has the program already."""
    return fy.Switch("updates", target.address, CompiledProgram().options(DEVICE_ID, force=False))
