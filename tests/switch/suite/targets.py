"""The switches that scripts run over."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switch.compiler.program import Program
from switch.engine import Engine
from switch.entries import Digest
from switch.reference import ReferenceEngine
from tests.switch.suite.stf import Expect, Packet, Statement


@dataclass(kw_only=True)
class Injected:
    """A switch that processes a packet at once, without sockets."""

    control: Engine
    ports: frozenset[int]
    _sent: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    @property
    def program(self) -> Program:
        assert self.control.program is not None
        return self.control.program

    def send(self, port: int, packet: bytes) -> None:
        for to, data in self.control.inject(port, packet):
            if to in self.ports:
                self._sent[to].append(data)

    def sent(self, expected: dict[int, int]) -> dict[int, list[bytes]]:
        return dict(self._sent)

    def digests(self, expected: int) -> list[Digest]:
        return self.control.take_digests(0)


def ports_of(statements: Iterable[Statement]) -> frozenset[int]:
    """The ports that a script names."""
    return frozenset(item.port for item in statements if isinstance(item, Packet | Expect))


@contextlib.contextmanager
def native(json: Path, statements: Sequence[Statement]) -> Iterator[Injected]:
    """The embedded switch."""
    engine = Engine({})
    engine.load(json.read_bytes())
    yield Injected(control=engine, ports=ports_of(statements))


@contextlib.contextmanager
def reference(json: Path, statements: Sequence[Statement]) -> Iterator[Injected]:
    """The interpreter."""
    engine = ReferenceEngine()
    engine.load(json.read_bytes())
    yield Injected(control=engine, ports=ports_of(statements))


TARGETS = {"native": native, "reference": reference}
