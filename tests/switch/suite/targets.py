"""The switches on which scripts run."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from google.protobuf import text_format

from kofn_switch import identity
from kofn_switch.compiler.ir.program import Program
from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Digest
from tests.switch.reference import ReferenceEngine
from tests.switch.suite.bmv2 import running
from tests.switch.suite.executor import Executor
from tests.switch.suite.stf import Statement, ports_of

DIGESTS_S = 5  # wait for a missing digest


@dataclass(kw_only=True)
class Injected:
    """A switch that processes one packet after another; see Target."""

    control: Executor
    ports: frozenset[int]
    ordered: bool = True
    _sent: dict[int, list[list[bytes]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def program(self) -> Program:
        assert self.control.program is not None
        return self.control.program

    def send(self, port: int, packet: bytes) -> None:
        became: dict[int, list[bytes]] = defaultdict(list)
        for to, data in self.control.inject(port, packet):
            became[to].append(data)
        for to in self.ports & became.keys():
            self._sent[to].append(became[to])

    def sent(self) -> dict[int, list[list[bytes]]]:
        return dict(self._sent)

    def digests(self, expected: int) -> list[Digest]:
        found: list[Digest] = []
        while len(found) < expected and (more := self.control.take_digests(DIGESTS_S)):
            found += more
        return found + self.control.take_digests(0)


@contextlib.contextmanager
def native(json: Path, statements: Sequence[Statement]) -> Iterator[Injected]:
    """Yield the embedded switch."""
    engine = Engine({})
    engine.load(json.read_bytes())
    yield Injected(control=engine, ports=ports_of(statements))


@contextlib.contextmanager
def reference(json: Path, statements: Sequence[Statement]) -> Iterator[Injected]:
    """Yield the interpreter."""
    engine = ReferenceEngine()
    engine.load(json.read_bytes())
    yield Injected(control=engine, ports=ports_of(statements))


@contextlib.contextmanager
def bmv2(json: Path, statements: Sequence[Statement]) -> Iterator[Injected]:
    """Yield simple_switch_grpc."""
    with running() as switch:
        text_format.Parse(json.with_suffix(".p4info.txtpb").read_text(), switch.info)
        switch.load(json.read_bytes())
        yield Injected(control=cast(Executor, switch), ports=ports_of(statements), ordered=False)


TARGETS = {"native": native, "reference": reference, "bmv2": bmv2}
PRESENT = [name for name in TARGETS if name != "bmv2" or identity.bmv2()]
