"""Programs in which `mcast_grp` and similar fields belong to intrinsic_metadata, as in P4_14."""

import json
from pathlib import Path
from typing import Any

from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Replica

PROGRAM = (Path(__file__).parent / "suite" / "programs" / "copies.json").read_bytes()
MULTICAST = 6
INTRINSIC = ("mcast_grp", "egress_rid", "ingress_global_timestamp")
QUEUEING = ("enq_qdepth", "deq_timedelta")


def in_p4_14() -> bytes:
    """Return the program with these fields in separate headers."""
    root = json.loads(PROGRAM)
    kinds = {kind["name"]: kind for kind in root["header_types"]}
    (standard,) = (item for item in root["headers"] if item["name"] == "standard_metadata")
    fields = {field[0]: field for field in kinds[standard["header_type"]]["fields"]}
    homes = {name: "intrinsic_metadata" for name in INTRINSIC} | {name: "queueing_metadata" for name in QUEUEING}
    kinds[standard["header_type"]]["fields"] = [field for name, field in fields.items() if name not in homes]
    for number, home in enumerate(("intrinsic_metadata", "queueing_metadata")):
        own = [fields[name] for name in fields if homes.get(name) == home]
        root["header_types"].append({"name": f"{home}_t", "id": 90 + number, "fields": own})
        root["headers"].append({"name": home, "id": 90 + number, "header_type": f"{home}_t", "metadata": True})

    def moved(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: moved(value) for key, value in item.items()}
        if isinstance(item, list):
            home = homes.get(str(item[1])) if len(item) == 2 and item[0] == "standard_metadata" else None
            return [home, item[1]] if home else [moved(value) for value in item]
        return item

    return json.dumps(moved(root)).encode()


def test_linked_fields_are_those_of_standard_metadata() -> None:
    wanted, found = read_program(PROGRAM), read_program(in_p4_14())
    assert found.headers.keys() == wanted.headers.keys()
    kinds = [program.headers["standard_metadata"].type.fields for program in (wanted, found)]
    assert sorted(kinds[0], key=repr) == sorted(kinds[1], key=repr)
    assert found.actions == wanted.actions and found.ingress == wanted.ingress and found.egress == wanted.egress


def test_packet_reaches_its_multicast_group() -> None:
    sent = []
    for document in (PROGRAM, in_p4_14()):
        engine = Engine({})
        engine.load(document)
        engine.set_group(1, [Replica(port=port, instance=port + 10) for port in (2, 3)])
        sent.append(engine.inject(1, bytes([MULTICAST, 0]) + bytes(26)))
    assert [port for port, _ in sent[0]] == [2, 3] and sent[1] == sent[0]
