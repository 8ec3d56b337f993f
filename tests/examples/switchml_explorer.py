"""Every interleaving of SwitchML's workers, packets, losses and duplicates, with algorithm 3 as a model of the switch.

The workers are those of examples/protocols/switchml.py. Each link keeps the order of packets, unless a test reorders.
"""

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from examples.protocols.switchml import HEADER, Pool, PoolSpeaker


class SwitchModel:
    """Algorithm 3, in the paper's names; packets as HEADER and lanes of 32 bits."""

    def __init__(self, workers: int) -> None:
        self.n = workers
        self.pool: dict[tuple[int, int], np.ndarray] = {}
        self.count: dict[tuple[int, int], int] = {}
        self.seen: set[tuple[int, int, int]] = set()

    def receive(self, packet: bytes) -> tuple[bytes, bool] | None:
        """Return the answer, and whether it goes to all workers; None if the packet is dropped."""
        job, wid, ver, idx, off, _ = HEADER.unpack_from(packet)
        vector, at = np.frombuffer(packet[HEADER.size :], ">u4").astype(np.uint32), (ver, idx)
        fresh = (*at, wid) not in self.seen
        if fresh:
            self.seen.add((*at, wid))
            self.seen.discard((1 - ver, idx, wid))
            first = self.count.get(at, 0) == 0
            self.count[at] = (self.count.get(at, 0) + 1) % self.n
            self.pool[at] = vector if first else self.pool[at] + vector
        if self.count[at]:
            return None
        header = HEADER.pack(job, wid, ver, idx, off, 0)
        return header + self.pool[at].astype(">u4").tobytes(), fresh

    def key(self) -> object:
        pool = tuple(sorted((at, value.tobytes()) for at, value in self.pool.items()))
        return pool, tuple(sorted(self.count.items())), frozenset(self.seen)


@dataclass
class World:
    """A state: workers, switch, packets on each link, and how many events of each kind may still happen."""

    speakers: list[PoolSpeaker]
    switch: SwitchModel
    up: list[deque[bytes]]
    down: list[deque[bytes]]
    budget: dict[str, int]
    ordered: bool = True
    events: tuple[str, ...] = field(default=())

    @classmethod
    def begin(cls, blocks: int, slots: int, budget: dict[str, int], *, ordered: bool = True) -> "World":
        """Return two workers that have sent their first packets; worker w's block b has the lane 4**b * (w + 1)."""
        workers, speakers = 2, []
        for rank in range(workers):
            lanes = np.array([[4**block * (rank + 1)] for block in range(blocks)], ">u4")
            speakers.append(PoolSpeaker(lanes.view(np.uint8).reshape(blocks, 4), Pool(1, rank, slots, 1.0)))
        empty = [deque[bytes]() for _ in speakers]
        world = cls(speakers, SwitchModel(workers), [deque(one.begin(0.0)) for one in speakers], empty, budget, ordered)
        return world

    def copy(self) -> "World":
        speakers = []
        for speaker in self.speakers:
            twin = copy.copy(speaker)
            twin.sums, twin._open, twin._pool = speaker.sums.copy(), dict(speaker._open), copy.copy(speaker._pool)
            twin._pool.versions = list(speaker._pool.versions)
            speakers.append(twin)
        switch = SwitchModel(self.switch.n)
        switch.pool, switch.count, switch.seen = dict(self.switch.pool), dict(self.switch.count), set(self.switch.seen)
        up, down = ([deque(link) for link in links] for links in (self.up, self.down))
        return World(speakers, switch, up, down, dict(self.budget), self.ordered, self.events)

    def key(self) -> object:
        workers = tuple(
            (one.left, one.sums.tobytes(), tuple(sorted((slot, open_[1:]) for slot, open_ in one._open.items())))
            for one in self.speakers
        )
        links = tuple(tuple(link) for link in (*self.up, *self.down))
        return workers, self.switch.key(), links, tuple(sorted(self.budget.items()))

    def wrong(self) -> str:
        """Return which sum is wrong; empty: none."""
        n = len(self.speakers)
        for rank, speaker in enumerate(self.speakers):
            closed = [block for block in range(len(speaker.blocks)) if speaker.sums[block].any()]
            for block in closed:
                found = int(speaker.sums[block].view(">u4")[0])
                if found != 4**block * n * (n + 1) // 2:
                    return f"worker {rank}, block {block}: {found} after {', '.join(self.events)}"
        return ""

    @property
    def over(self) -> bool:
        return not any(one.left for one in self.speakers)

    def next(self) -> Iterator["World"]:
        """Yield each state that one event leads to."""
        for rank in range(len(self.speakers)):
            for way, links in (("up", self.up), ("down", self.down)):
                for at in range(len(links[rank]) if not self.ordered else min(1, len(links[rank]))):
                    yield self._arrive(way, rank, at)
                    for kind in ("loss", "duplicate"):
                        if self.budget.get(kind, 0):
                            yield self._spoil(kind, way, rank, at)
            yield from self._timeouts(rank)

    def _after(self, event: str) -> "World":
        world = self.copy()
        world.events += (event,)
        return world

    def _arrive(self, way: str, rank: int, at: int) -> "World":
        world = self._after(f"{way} {rank}")
        link = (world.up if way == "up" else world.down)[rank]
        packet = link[at]
        del link[at]
        if way == "down":
            world.up[rank].extend(world.speakers[rank].receive(packet, 0.0))
            return world
        answer = world.switch.receive(packet)
        if answer is not None:
            for other in range(len(world.speakers)) if answer[1] else [rank]:
                world.down[other].append(answer[0])
        return world

    def _spoil(self, kind: str, way: str, rank: int, at: int) -> "World":
        world = self._after(f"{kind} {way} {rank}")
        world.budget[kind] -= 1
        link = (world.up if way == "up" else world.down)[rank]
        if kind == "loss":
            del link[at]
        else:
            link.insert(at + 1, link[at])
        return world

    def _timeouts(self, rank: int) -> Iterator["World"]:
        """Yield a time-out of each slot without packets under way, and premature ones."""
        for slot, (_, number, packet) in self.speakers[rank]._open.items():
            under_way = any(HEADER.unpack_from(one)[3] == slot for link in (*self.up, *self.down) for one in link)
            if under_way and not self.budget.get("premature", 0):
                continue
            world = self._after(f"timeout {rank}, slot {slot}")
            if under_way:
                world.budget["premature"] -= 1
            world.up[rank].append(world.speakers[rank]._again(slot, (number, packet), 0.0))
            yield world


def explore(begin: World) -> tuple[int, str, int]:
    """Return the number of states, the first wrong sum, and the number of states that cannot come to an end."""
    numbers = {begin.key(): 0}
    before: list[list[int]] = [[]]
    ends, waiting = [], [(0, begin)]
    while waiting:
        number, world = waiting.pop()
        if wrong := world.wrong():
            return len(numbers), wrong, 0
        if world.over:
            ends.append(number)
            continue
        for after in world.next():
            key = after.key()
            if key not in numbers:
                numbers[key] = len(before)
                before.append([])
                waiting.append((numbers[key], after))
            before[numbers[key]].append(number)
    reached, todo = set(ends), list(ends)
    while todo:
        for number in before[todo.pop()]:
            if number not in reached:
                reached.add(number)
                todo.append(number)
    return len(numbers), "", len(numbers) - len(reached)
