"""Gathers digest messages into lists. A list is sent when it is full or old enough. A message of a list that is not yet
acknowledged is kept out of later lists.

This module has no I/O and no clock: every call takes the time in seconds, and `due` returns the lists to send. The
rules are those of the specification's "DigestEntry".
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
from finsy.proto import p4r

from kofn_switch.p4runtime.p4data import encode
from kofn_switch.p4runtime.p4info import DigestType, P4Info
from kofn_switch.p4runtime.refusal import Refused, choices, invalid, not_found

NS_PER_S = 1e9
Message = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentList:
    """The messages of one list, and the time at which it was sent."""

    messages: tuple[Message, ...]
    sent_s: float


@dataclass(slots=True, kw_only=True)
class DigestQueue:
    """One enabled digest: its settings, the list being filled, the lists not yet acknowledged."""

    type: DigestType
    config: p4r.DigestEntry.Config
    filling: dict[Message, None] = field(default_factory=dict)  # an ordered set
    since_s: float = 0.0  # when the first message of `filling` came
    sent: OrderedDict[int, SentList] = field(default_factory=OrderedDict)  # the oldest first
    kept_back: dict[Message, None] = field(default_factory=dict)

    def add(self, message: Message, now_s: float) -> None:
        """Append a message, unless it already waits or an unacknowledged list holds it."""
        self._expire(now_s)
        if message in self.filling or message in self.kept_back:
            return
        if not self.filling:
            self.since_s = now_s
        self.filling[message] = None

    def full(self) -> bool:
        """Return whether the list has reached max_list_size."""
        return 0 < self.config.max_list_size <= len(self.filling)

    def deadline_s(self) -> float | None:
        """Return the time by which the list being filled is sent; None if that list is empty."""
        return self.since_s + self.config.max_timeout_ns / NS_PER_S if self.filling else None

    def take(self, list_id: int, now_s: float) -> p4r.DigestList:
        """Return the list being filled, as a message, and remember it until it is acknowledged or times out."""
        messages, self.filling = tuple(self.filling), {}
        if self.config.ack_timeout_ns > 0:
            self.sent[list_id] = SentList(messages=messages, sent_s=now_s)
            self.kept_back.update(dict.fromkeys(messages))
        data = (encode(self.type.type, message) for message in messages)
        return p4r.DigestList(digest_id=self.type.id, list_id=list_id, data=data, timestamp=time.time_ns())

    def forget(self, list_id: int) -> None:
        """Permit the messages of a list again, after its acknowledgement or timeout."""
        gone = self.sent.pop(list_id, None)
        for message in gone.messages if gone else ():
            self.kept_back.pop(message, None)

    def _expire(self, now_s: float) -> None:
        timeout_s = self.config.ack_timeout_ns / NS_PER_S
        while self.sent and self.sent[oldest := next(iter(self.sent))].sent_s + timeout_s <= now_s:
            self.forget(oldest)


class Digests:
    """All digests of a program."""

    def __init__(self, p4info: P4Info) -> None:
        """Start without enabled digests."""
        self._types = p4info.digests
        self._queues: dict[int, DigestQueue] = {}
        self._list_id = 0

    def write(self, kind: int, entry: p4r.DigestEntry) -> None:
        """Enable a digest (INSERT), change its settings (MODIFY), or disable it (DELETE)."""
        digest = self._types.get(entry.digest_id)
        if kind == p4r.Update.INSERT:
            self._insert(digest, entry)
        elif kind == p4r.Update.MODIFY:
            self._enabled(digest).config = _checked(digest, entry)
        else:
            self._enabled(digest)
            del self._queues[digest.id]

    def read(self, digest_id: int) -> Iterator[p4r.DigestEntry]:
        """Yield the settings of one digest (NOT_FOUND while it is disabled), or of all enabled digests for id 0."""
        queues = [self._enabled(self._types.get(digest_id))] if digest_id else list(self._queues.values())
        for queue in queues:
            yield p4r.DigestEntry(digest_id=queue.type.id, config=queue.config)

    def add(self, name: str, message: Message, now_s: float) -> Iterator[p4r.DigestList]:
        """Take a message from the data plane, and yield the list that the message fills, if any. Drop the message if
        the digest is disabled."""
        queue = next((queue for queue in self._queues.values() if queue.type.name == name), None)
        if queue is not None:
            queue.add(message, now_s)
            if queue.full():
                yield self._take(queue, now_s)

    def due(self, now_s: float) -> Iterator[p4r.DigestList]:
        """Yield the lists whose time has come."""
        for queue in self._queues.values():
            deadline_s = queue.deadline_s()
            if queue.full() or (deadline_s is not None and deadline_s <= now_s):  # full if max_list_size has shrunk
                yield self._take(queue, now_s)

    def next_deadline_s(self) -> float | None:
        """Return the time at which `due` will have a list to send; None if no list waits."""
        return min((at for queue in self._queues.values() if (at := queue.deadline_s()) is not None), default=None)

    def acknowledge(self, ack: p4r.DigestListAck) -> None:
        """Note that the client has acknowledged a list. Ignore an unknown list, and refuse an unknown digest."""
        digest = self._types.get(ack.digest_id)
        if digest.id in self._queues:
            self._queues[digest.id].forget(ack.list_id)

    def restart(self) -> None:
        """Start again with empty lists for a new primary."""
        for queue in self._queues.values():
            queue.filling.clear()
            queue.sent.clear()
            queue.kept_back.clear()

    def _insert(self, digest: DigestType, entry: p4r.DigestEntry) -> None:
        if digest.id in self._queues:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"digest {digest.name} is enabled already; MODIFY it")
        self._queues[digest.id] = DigestQueue(type=digest, config=_checked(digest, entry))

    def _enabled(self, digest: DigestType) -> DigestQueue:
        if digest.id not in self._queues:
            enabled = choices(queue.type.name for queue in self._queues.values())
            raise not_found(f"digest {digest.name} is not enabled; of the enabled ones {enabled}")
        return self._queues[digest.id]

    def _take(self, queue: DigestQueue, now_s: float) -> p4r.DigestList:
        self._list_id += 1
        return queue.take(self._list_id, now_s)


def _checked(digest: DigestType, entry: p4r.DigestEntry) -> p4r.DigestEntry.Config:
    config = p4r.DigestEntry.Config()
    config.CopyFrom(entry.config)
    for name in ("max_timeout_ns", "max_list_size", "ack_timeout_ns"):
        value = getattr(config, name)
        if value < 0:
            raise invalid(f"{name} of digest {digest.name} is {value}; it must be 0 or more")
    return config
