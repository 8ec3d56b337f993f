"""Programs to fuzz, with table entries and initial packets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kofn_common.wire.packet import PORT, KofnHeader, encode
from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Entry, Exact, Replica
from tests.switch.suite.runner import Run
from tests.switch.suite.stf import Packet, parse, ports_of
from tests.switch.suite.targets import Injected

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "tests" / "switch" / "suite" / "programs"
KOFN = ROOT / "p4src" / "build" / "kofn.json"
HIGH_BITS = int("80000000" * 64, 16)  # the sign bits of 32-bit lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A program; `script` has its table entries and packets; without one the program is kofn."""

    name: str
    path: Path
    script: Path | None = None

    def document(self) -> bytes:
        """p4c's JSON; kofn's lacks its checksums, so that more frames get beyond them."""
        if self.script is not None:
            return self.path.read_bytes()
        return json.dumps(json.loads(self.path.read_bytes()) | {"checksums": []}).encode()

    def p4info(self) -> str:
        """The P4Info as text, from the file beside the program."""
        return self.path.with_suffix(".p4info.txtpb").read_text()

    def load(self) -> tuple[Engine, list[tuple[int, bytes]]]:
        """Return a switch with the program and entries, and packets with their ports."""
        engine = Engine({}, cpu_port=255)
        engine.load(self.document())
        if self.script is None:
            return engine, _set_up_kofn(engine)
        statements = parse(self.script.read_text())
        Run(Injected(control=engine, ports=ports_of(statements))).execute(statements)
        return engine, [(item.port, item.data) for item in statements if isinstance(item, Packet)]


def _set_up_kofn(engine: Engine) -> list[tuple[int, bytes]]:
    """Set up a job of two workers at ports 1 and 2; return their contributions, of one word and of 32."""
    engine.set_group(1, [Replica(port=port, instance=port) for port in (1, 2)])
    _insert(engine, "ingress.admission.jobs", [1], "ingress.admission.set_job", [2, 1, 0, 1023, 1, 2, 0])
    _insert(engine, "ingress.admission.lanes", [0], "ingress.admission.set_lanes", [HIGH_BITS])
    for port in (1, 2):
        _insert(engine, "ingress.admission.members", [port, 1, port - 1], "ingress.admission.admit_host", [])
        _insert(engine, "ingress.admission.recipients", [1, port - 1], "ingress.admission.accept_recipient", [])
        _insert(engine, "egress.deliver.hosts", [port, 1], "egress.deliver.to_host", [port, port, 0, port - 1])
    return [(port, _contribution(port - 1, words)) for port in (1, 2) for words in (1, 4, 32)]


def _insert(engine: Engine, table: str, key: Sequence[int], action: str, parameters: Sequence[int]) -> None:
    match = tuple(Exact(value=value) for value in key)
    engine.insert(Entry(table=table, key=match, action=action, parameters=tuple(parameters)))


def _contribution(worker: int, words: int) -> bytes:
    header = KofnHeader(job=1, worker=worker, words=words, generation=1, iteration=1, block=words, slot=words)
    datagram = encode(header, bytes(range(256)) * words)
    udp = 8 + len(datagram)
    ip = bytes.fromhex("4500") + (udp + 20).to_bytes(2, "big") + bytes.fromhex("0000 0000 4011 0000 0a000001 0a0000fe")
    ports = PORT.to_bytes(2, "big") * 2 + udp.to_bytes(2, "big") + bytes(2)
    return bytes(12) + b"\x08\x00" + ip + ports + datagram


PROGRAMS = [
    Subject(name="kofn", path=KOFN),
    *(
        Subject(name=script.stem, path=script.with_suffix(".json"), script=script)
        for script in sorted(SUITE.glob("*.stf"))
    ),
]
