"""Tables with many entries in the embedded switch: how fast they fill and are looked up, how fast a program loads.

    python bench/entries.py [--entries 100000] [--batch 1000] [--bmv2-entries 20000]

Needs cc, no root.  Entries are inserted over P4Runtime into a switch in another process; BMv2, where it is
present, gets the same.  Look-ups are timed with packets injected into an engine in this process, each table with a few
entries and with all: the other costs of a packet are in both.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

from bench.tables import whole
from kofn.run.switch_identity import bmv2
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryExists
from kofn_switch.identity import BMV2
from kofn_switch.state.entries import Entry, Exact, Key, Lpm, Ternary

FOLDER = Path(__file__).parent / "entries"
PROGRAM = (FOLDER / "entries.json").read_bytes()
P4INFO = p4i.P4Info()
text_format.Parse((FOLDER / "entries.p4info.txtpb").read_text(), P4INFO)
COMMANDS = {"embedded": [sys.executable, "-m", "kofn_switch"], "bmv2": [BMV2]}
START_S = 30
PRIMARY = p4r.Uint128(low=1)
FEW = 10
PACKETS = 20_000
MASKS = [0xFF << 24 | 0xFF << shift for shift in range(0, 24, 2)]  # of the rules' sources
SEND = "Entries.send"


def identify(name: str) -> int:
    """The id of a table or action."""
    preambles = [item.preamble for item in P4INFO.tables] + [item.preamble for item in P4INFO.actions]
    return next(preamble.id for preamble in preambles if preamble.name == name)


@contextlib.contextmanager
def running(target: str) -> Iterator[p4r_grpc.P4RuntimeStub]:
    """A switch process without ports."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/socket"
        flags = ["--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address]
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*COMMANDS[target], *flags], stdout=quiet, stderr=quiet) as process:
            try:
                with grpc.insecure_channel(address) as channel:
                    grpc.channel_ready_future(channel).result(START_S)
                    yield p4r_grpc.P4RuntimeStub(channel)
            finally:
                process.terminate()


@contextlib.contextmanager
def primary(stub: p4r_grpc.P4RuntimeStub, p4info: p4i.P4Info = P4INFO, program: bytes = PROGRAM) -> Iterator[None]:
    """Be primary, with the program pushed."""
    ended = threading.Event()

    def requests() -> Iterator[p4r.StreamMessageRequest]:
        bid = p4r.MasterArbitrationUpdate(device_id=1, election_id=PRIMARY)
        yield p4r.StreamMessageRequest(arbitration=bid)
        ended.wait()

    stream = stub.StreamChannel(requests())
    next(stream)
    config = p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=program)
    push = p4r.SetForwardingPipelineConfigRequest(device_id=1, election_id=PRIMARY, config=config)
    push.action = push.VERIFY_AND_COMMIT
    stub.SetForwardingPipelineConfig(push)
    yield
    ended.set()
    stream.cancel()


def station(number: int) -> p4r.Update:
    key = p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=(0x02 << 40 | number).to_bytes(6, "big")))
    param = p4r.Action.Param(param_id=1, value=b"\1")
    action = p4r.TableAction(action=p4r.Action(action_id=identify(SEND), params=[param]))
    row = p4r.TableEntry(table_id=identify("Entries.stations"), match=[key], action=action)
    return p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=row))


def insertion(target: str, entries: int, batch: int) -> float:
    updates = [station(number) for number in range(entries)]
    requests = [
        p4r.WriteRequest(device_id=1, election_id=PRIMARY, updates=updates[at : at + batch])
        for at in range(0, entries, batch)
    ]
    with running(target) as stub, primary(stub):
        began = time.perf_counter()
        for request in requests:
            stub.Write(request)
        taken_s = time.perf_counter() - began
    return entries / taken_s


def loading() -> tuple[float, float]:
    """Seconds from JSON to a running program: compiled, and from the cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KOFN_CACHE"] = cache
        engine = Engine({})  # compiles the runtime, which is there when a switch runs
        times = []
        for _ in range(2):
            began = time.perf_counter()
            engine.load(PROGRAM)
            times.append(time.perf_counter() - began)
        del os.environ["KOFN_CACHE"]
    return times[0], times[1]


def key_of(table: str, draw: random.Random) -> tuple[Key, int]:
    """A key and its priority."""
    match table:
        case "stations":
            return (Exact(value=draw.getrandbits(48)),), 0
        case "routes":
            length = draw.randint(8, 32)
            return (Lpm(value=draw.getrandbits(length) << (32 - length), prefix_length=length),), 0
    masks = draw.choice(MASKS), draw.choice(MASKS)
    return tuple(Ternary(value=draw.getrandbits(32) & mask, mask=mask) for mask in masks), draw.randint(1, 1000)


def fill(engine: Engine, table: str, entries: int, draw: random.Random) -> None:
    for _ in range(entries):
        key, priority = key_of(table, draw)
        with contextlib.suppress(EntryExists):
            engine.insert(Entry(table=f"Entries.{table}", key=key, priority=priority, action=SEND, parameters=(1,)))


def packet_us(engine: Engine, kind: int, draw: random.Random) -> float:
    packets = [draw.randbytes(12) + kind.to_bytes(2, "big") + draw.randbytes(8) for _ in range(PACKETS)]
    began = time.perf_counter()
    for packet in packets:
        engine.inject(0, packet)
    return (time.perf_counter() - began) / PACKETS * 1e6


def lookups(entries: int) -> Iterator[tuple[str, float, float]]:
    """Each table: microseconds a packet with a few entries, and with all."""
    engine, draw = Engine({}), random.Random(1)
    engine.load(PROGRAM)
    for kind, table in enumerate(("stations", "routes", "rules"), 1):
        fill(engine, table, FEW, draw)
        few = packet_us(engine, kind, draw)
        fill(engine, table, entries - FEW, draw)
        yield table, few, packet_us(engine, kind, draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=whole(), default=100_000)
    parser.add_argument("--batch", type=whole(), action="append", help="updates in a Write (default: 1, 100 and 1000)")
    parser.add_argument("--bmv2-entries", type=whole(), default=20_000, help="fewer for BMv2, which is slower")
    told = parser.parse_args()
    cold_s, cached_s = loading()
    print(f"loading: {cold_s:.2f} s compiled, {cached_s:.3f} s from the cache")
    for target, entries in (("embedded", told.entries), ("bmv2", told.bmv2_entries)):
        if target == "bmv2" and bmv2() is None:
            continue
        for batch in told.batch or (1, 100, 1000):
            count = min(entries, 5000 * batch)
            print(
                f"{target}: {count} exact entries, {batch} in a Write: {insertion(target, count, batch):,.0f} a second"
            )
    for table, few, many in lookups(told.entries):
        print(f"{table}: {few:.1f} us a packet with {FEW} entries, {many:.1f} us with {told.entries}")


if __name__ == "__main__":
    main()
