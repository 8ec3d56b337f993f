"""simple_switch_CLI: each command on a running engine, the client as a process, and its names in a folder."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kofn_switch.cli.names import NAMES, make_names
from kofn_switch.commands.client import INTRO, PROMPT
from kofn_switch.commands.interpreter import COMMANDS, answer
from kofn_switch.commands.server import LINE_MOST, serving_commands
from kofn_switch.commands.session import CommandError, Session
from kofn_switch.commands.values import value
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.state.entries import CloneSession, Count, Replica
from tests.switch.build import document
from tests.switch.every_table import NOTHING, probe

PROGRAM = Path(__file__).parent / "programs" / "control_plane.json"


@pytest.fixture
def session() -> Session:
    engine = Engine({7: "s1-eth7"}, cpu_port=255)
    engine.load(PROGRAM.read_bytes())
    return Session(engine)


def say(session: Session, *lines: str) -> list[str]:
    """Return the lines of all answers."""
    return [said for line in lines for said in answer(session, line).splitlines()]


@pytest.mark.slow
def test_entry_is_added_shown_changed_and_deleted(session: Session) -> None:
    assert say(session, "table_add exacts send 0x05 => 300") == [
        "Adding entry to exact match table exacts",
        "match key:           EXACT-05",
        "action:              send",
        "runtime data:        01:2c",
        "Entry has been added with handle 0",
    ]
    assert say(session, "table_dump TestIngress.exacts") == [
        "==========",
        "TABLE ENTRIES",
        "**********",
        "Dumping entry 0x0",
        "Match key:",
        "* hdr.test.narrow     : EXACT     05",
        "Action entry: TestIngress.send - 012c",
        "==========",
        "Dumping default entry",
        "Action entry: TestIngress.drop - ",
        "==========",
    ]
    say(session, "table_modify exacts send 0 => 4")
    assert say(session, "table_dump_entry exacts 0")[-1] == "Action entry: TestIngress.send - 04"
    assert say(session, "table_delete exacts 0", "table_num_entries exacts") == ["Deleting entry 0 from exacts", "0"]


@pytest.mark.slow
def test_every_kind_of_match_is_understood(session: Session) -> None:
    say(
        session, "table_add prefixes tag 10.1.2.3/8 => 9", "table_add patterns tag 0xabcd&&&0xff 3->8 1&&&0x1ff => 1 10"
    )
    (entry,) = session.engine.entries("TestIngress.prefixes")
    assert (entry.key[0].value, entry.key[0].prefix_length) == (10 << 24, 8)
    assert say(session, "table_dump_entry patterns 0") == [
        "Dumping entry 0x0",
        "Match key:",
        "* hdr.test.value       : TERNARY   000000cd &&& 000000ff",
        "* hdr.test.narrow      : RANGE     03 -> 08",
        "* standard.ingress_port: TERNARY   0001 &&& 01ff",
        "Priority: 10",
        "Action entry: TestIngress.tag - 01",
    ]


def test_lower_priority_number_wins(session: Session) -> None:
    rows = ("table_add patterns tag 0&&&0 0->255 0&&&0 => 1 20", "table_add patterns tag 0&&&0 0->255 0&&&0 => 2 10")
    say(session, *rows)
    first, second = session.engine.entries("TestIngress.patterns")
    assert first.priority < second.priority


def test_default_actions_are_set_and_reset(session: Session) -> None:
    assert say(session, "table_set_default exacts send 5")[0] == "Setting default action of exacts"
    assert session.engine.default("TestIngress.exacts") == ("TestIngress.send", (5,))
    say(session, "table_reset_default exacts")
    assert session.engine.default("TestIngress.exacts") == ("TestIngress.drop", ())


def test_cells_are_read_and_written(session: Session) -> None:
    assert say(session, "register_write cells 3 77", "register_read cells 3") == ["cells[3]= 77"]
    assert say(session, "register_reset cells", "register_read cells") == ["cells= " + ", ".join(["0"] * 16)]
    written = say(session, "counter_write seen 2 3 400", "counter_read seen 2")
    assert written == ["seen[2] has been updated", "seen[2]= (400 bytes, 3 packets)"]
    say(session, "counter_reset seen", "table_add exacts send 1 => 1", "counter_write hits 0 1 60")
    assert say(session, "counter_read seen 2", "counter_read hits 0")[::2] == [
        "seen[2]= (0 bytes, 0 packets)",
        "hits[0]= (60 bytes, 1 packets)",
    ]


def test_multicast_groups_consist_of_nodes(session: Session) -> None:
    say(session, "mc_mgrp_create 5", "mc_node_create 9 1 3", "mc_node_create 8 2")
    say(session, "mc_node_associate 5 0", "mc_node_associate 5 1")
    assert [(one.port, one.instance) for one in session.engine.group(5)] == [(1, 9), (3, 9), (2, 8)]
    assert "  -> (L1h=0, rid=9) -> (ports=[1, 3], lags=[])" in say(session, "mc_dump")
    say(session, "mc_node_update 0 4", "mc_node_dissociate 5 1")
    assert [one.port for one in session.engine.group(5)] == [4]
    say(session, "mc_node_destroy 0", "mc_mgrp_destroy 5")
    assert session.engine.groups() == {}


def test_groups_and_sessions_of_commands_outlive_a_pushed_program(session: Session) -> None:
    """p4lang's tutorials run a topology's commands before the controller pushes its program; BMv2 keeps these, too."""
    say(session, "mc_mgrp_create 5", "mc_node_create 9 1 3", "mc_node_associate 5 0", "mirroring_add 7 2")
    session.engine.set_group(6, [Replica(port=1)])
    session.engine.set_session(8, CloneSession(group=6))
    for _ in range(2):
        session.engine.load(PROGRAM.read_bytes())
        assert session.engine.groups() == {5: (Replica(port=1, instance=9), Replica(port=3, instance=9))}
        assert session.engine.sessions() == {7: CloneSession(replicas=(Replica(port=2),))}
    say(session, "mc_mgrp_destroy 5", "mirroring_delete 7")
    session.engine.set_group(5, [Replica(port=1)])
    session.engine.set_session(7, CloneSession(group=5))
    session.engine.load(PROGRAM.read_bytes())
    assert (session.engine.groups(), session.engine.sessions()) == ({}, {})


def test_replaced_group_or_session_does_not_last(session: Session) -> None:
    say(session, "mc_mgrp_create 5", "mc_node_create 9 1 3", "mc_node_associate 5 0", "mirroring_add 7 2")
    assert (session.engine.groups(lasting=False), session.engine.sessions(lasting=False)) == ({}, {})
    session.engine.set_group(5, [Replica(port=1)])
    session.engine.set_session(7, CloneSession(group=5))
    session.engine.load(PROGRAM.read_bytes())
    assert (session.engine.groups(), session.engine.sessions()) == ({}, {})


def test_numbers_may_have_zeros_before_them(session: Session) -> None:
    said = say(session, "register_write cells 007 010", "register_read cells 0x7", "mirroring_add 05 02")
    assert said == ["cells[7]= 10"]
    assert session.engine.sessions() == {5: CloneSession(replicas=(Replica(port=2),))}
    say(session, "table_add prefixes tag 10.0.0.0/08 => 1")
    assert len(session.engine.entries("TestIngress.prefixes")) == 1


def test_entry_is_found_by_its_handle_at_once() -> None:
    """No other client is answered meanwhile."""
    engine, entries = Engine({}), 3000
    root = json.loads(document(header_types={"h_t": [["a", 32, False]]}, headers={"h": "h_t"}, primitives=[]))
    (table,) = root["pipelines"][0]["tables"]
    table.update(key=[{"match_type": "exact", "name": "h.a", "target": ["h", "a"], "mask": None}], max_size=entries)
    engine.load(json.dumps(root).encode())
    session = Session(engine)
    say(session, *(f"table_add t a {value} =>" for value in range(entries)))
    before = time.process_time()
    say(session, *(f"table_delete t {handle}" for handle in range(entries)))
    assert engine.entries("t") == []
    assert time.process_time() - before < 5
    for wrong in (-1, entries - 1, entries, 1 << 32, 1 << 64):
        assert say(session, f"table_dump_entry t {wrong}") == ["Error: Invalid table operation (INVALID_HANDLE)"]


def test_node_is_in_one_multicast_group(session: Session) -> None:
    say(session, "mc_mgrp_create 5", "mc_mgrp_create 6", "mc_node_create 9 1", "mc_node_associate 5 0")
    for group in (5, 6):
        (said,) = say(session, f"mc_node_associate {group} 0")
        assert said == "Error: Invalid PRE operation (ERROR): node 0 is in multicast group 5"
    assert [one.port for one in session.engine.group(5)] == [1]


def test_key_bytes_have_colons_and_parameters_no_leading_zeros(session: Session) -> None:
    said = say(session, "table_add prefixes tag 10.0.0.0/8 => 0", "table_dump_entry prefixes 0")
    assert said[1] == "match key:           LPM-0a:00:00:00/8"
    assert said[-1] == "Action entry: TestIngress.tag - 00"


def test_bits_beyond_a_prefix_are_shown_as_typed(session: Session) -> None:
    """BMv2 masks them only when it matches, too. Bits outside of a mask are shown in the echo only."""
    said = say(session, "table_add prefixes tag 10.1.2.3/8 => 9", "table_add prefixes tag 10.1.2.3/0 => 7")
    assert [line for line in said if "LPM" in line] == [
        "match key:           LPM-0a:01:02:03/8",
        "match key:           LPM-0a:01:02:03/0",
    ]
    said = say(session, "table_dump prefixes", "table_modify prefixes tag 0 8", "table_dump_entry prefixes 0")
    assert [line.split()[-1] for line in said if "LPM" in line] == ["0a010203/8", "0a010203/0", "0a010203/8"]
    (said_no,) = say(session, "table_add prefixes tag 10.9.9.9/8 => 9")
    assert said_no.startswith("Error: ")
    said = say(session, "table_add patterns tag 0xabcd&&&0xff 3->8 1&&&0x1ff => 1 10", "table_dump_entry patterns 0")
    assert "TERNARY-00:00:ab:cd &&& 00:00:00:ff" in said[1] and "000000cd &&& 000000ff" in said[7]
    say(session, "table_delete prefixes 0", "table_add prefixes tag 10.0.0.0/8 => 9")
    assert "0a000000/8" in say(session, "table_dump_entry prefixes 0")[2]


def test_entry_is_found_by_its_key(session: Session) -> None:
    say(
        session, "table_add prefixes tag 10.1.2.3/8 => 9", "table_add patterns tag 0xabcd&&&0xff 3->8 1&&&0x1ff => 1 10"
    )
    for line, handle in (
        ("prefixes 10.9.9.9/8", "prefixes 0"),
        ("patterns 0xcd&&&0xff 3->8 1&&&0x1ff 10", "patterns 0"),
    ):
        found = say(session, f"table_dump_entry_from_key {line}")
        assert found[0] == "Dumping entry 0x0" and found == say(session, f"table_dump_entry {handle}")
    for line in ("prefixes 10.9.9.9/9", "patterns 0xcd&&&0xff 3->8 1&&&0x1ff 11"):
        (said,) = say(session, f"table_dump_entry_from_key {line}")
        assert said == "Error: Invalid table operation (BAD_MATCH_KEY)"


def test_commands_of_the_older_tool_name_the_table_of_an_action_profile(engine: Engine) -> None:
    session = Session(engine)
    made = ["create_member selected answer 5", "create_member selected answer 6", "create_group selected"]
    assert say(session, *(f"table_indirect_{line}" for line in made)) == [
        "Member has been created with handle 0",
        "Member has been created with handle 1",
        "Group has been created with handle 0",
    ]
    say(session, "table_indirect_add_member_to_group selected 0 0", "table_indirect_add_member_to_group selected 1 0")
    assert say(session, "table_dump_group selected 0") == ["Dumping group 0", "Members: [0, 1]"]
    say(
        session,
        "table_indirect_remove_member_from_group selected 1 0",
        "table_indirect_modify_member selected answer 0 7",
    )
    assert say(session, "table_dump_group selected 0", "table_dump_member selected 0") == [
        *("Dumping group 0", "Members: [0]", "Dumping member 0", "Action entry: Tables.answer - 07")
    ]
    say(session, "table_indirect_delete_group selected 0", "table_indirect_delete_member selected 0")
    assert say(session, "table_dump_member selected 0") == ["Error: Invalid table operation (INVALID_MBR_HANDLE)"]
    assert say(session, "table_dump_member by_exact 0") == ["Error: Cannot run this command on non-indirect table"]


def test_state_is_reset_to_the_programs(session: Session) -> None:
    fresh = [say(session, f"table_dump {table.name}") for table in session.program.tables]
    say(session, "table_add exacts send 1 => 1", "table_set_default exacts send 5", "table_add prefixes tag 1/32 => 7")
    say(session, "register_write cells 3 77", "counter_write seen 2 3 400", "mirroring_add 5 3")
    say(session, "mc_mgrp_create 5", "mc_node_create 9 1", "mc_node_associate 5 0")
    assert say(session, "reset_state") == []
    assert [say(session, f"table_dump {table.name}") for table in session.program.tables] == fresh
    assert say(session, "register_read cells 3", "counter_read seen 2") == [
        "cells[3]= 0",
        "seen[2]= (0 bytes, 0 packets)",
    ]
    assert session.engine.groups() == {} and "L1h" not in "".join(say(session, "mc_dump"))
    assert say(session, "mirroring_get 5") == ["MirroringSessionConfig(port=3, mgid=None)"], (
        "the session must be listed as in BMv2"
    )
    assert say(session, "table_add exacts send 1 => 1")[-1] == "Entry has been added with handle 0"


def test_action_profiles_and_meters_are_reset(engine: Engine) -> None:
    session = Session(engine)
    say(session, "act_prof_create_member chosen answer 5", "act_prof_create_group chosen")
    say(session, "act_prof_add_member_to_group chosen 0 0", "table_indirect_add_with_group selected 1 => 0")
    name = session.program.meters[0].name
    say(session, f"meter_set_rates {name} 0 0.5:10 1:20", "reset_state")
    assert engine.members("Tables.chosen") == [] and engine.member_groups("Tables.chosen") == []
    assert probe(engine, "selected", a=1)[0] == NOTHING and engine.read_meter(name, 0) is None


def test_value_sets_are_listed_and_survive_a_reset() -> None:
    engine = Engine({})
    engine.load((PROGRAM.parents[1] / "suite" / "programs" / "value_sets.json").read_bytes())
    session = Session(engine)
    names = sorted(engine.program.value_sets) if engine.program else []
    listed = say(session, "show_pvs")
    assert [line.split()[0] for line in listed] == names and all("[compressed bitwidth:" in line for line in listed)
    say(session, f"pvs_add {names[0]} 1", "reset_state")
    assert engine.value_set(names[0]) == (1,)


def test_switch_reports_its_counters_and_times() -> None:
    engine = Engine({})
    assert answer(Session(engine, 3, 9091), "switch_info").splitlines()[:3] == [
        "device_id                : 3",
        "thrift_port              : 9091",
        "notifications_socket     : None",
    ]
    earlier, later = (int(answer(Session(engine), "get_time_elapsed")) for _ in range(2))
    assert 0 <= earlier <= later < 60_000_000
    assert abs(int(answer(Session(engine), "get_time_since_epoch")) / 1e6 - time.time()) < 60


def test_mirroring_sessions_are_created_shown_and_removed(session: Session) -> None:
    say(session, "mirroring_add 5 3", "mirroring_add_mc 6 1")
    assert say(session, "mirroring_get 5") == ["MirroringSessionConfig(port=3, mgid=None)"]
    assert session.engine.sessions()[6].group == 1
    say(session, "mirroring_delete 5")
    assert say(session, "mirroring_get 5") == ["Error: Invalid mirroring operation (SESSION_NOT_FOUND)"]


def test_members_and_groups_of_action_profiles_are_written_and_shown(engine: Engine) -> None:
    session = Session(engine)
    assert say(session, "act_prof_create_member chosen answer 7", "act_prof_create_member chosen answer 8") == [
        "Member has been created with handle 0",
        "Member has been created with handle 1",
    ]
    assert say(session, "act_prof_create_group chosen") == ["Group has been created with handle 0"]
    say(session, "act_prof_add_member_to_group chosen 0 0", "act_prof_add_member_to_group chosen 1 0")
    assert "Members: [0, 1]" in say(session, "act_prof_dump chosen")
    assert say(session, "act_prof_dump_member chosen 1")[0] == "Dumping member 1"
    assert say(session, "act_prof_dump_group chosen 0") == ["Dumping group 0", "Members: [0, 1]"]
    assert say(session, "act_prof_dump_member chosen 2") == ["Error: Invalid table operation (INVALID_MBR_HANDLE)"]
    say(session, "act_prof_remove_member_from_group chosen 0 0", "act_prof_delete_member chosen 0")
    assert say(session, "act_prof_dump chosen")[-1] == "Members: [1]"
    assert say(session, "act_prof_remove_member_from_group chosen 0 0") == [
        "Error: Invalid table operation (MBR_NOT_IN_GRP)"
    ]


def test_entries_of_indirect_tables_are_written_and_shown(engine: Engine) -> None:
    session = Session(engine)
    say(session, "act_prof_create_member shared answer 3", "table_indirect_add indirect 1 => 0")
    assert probe(engine, "indirect", a=1)[0] == 3
    said = say(session, "table_dump indirect")
    assert said[said.index("Index: member(0)") :][:5] == [
        "Index: member(0)",
        "==========",
        "MEMBERS",
        "**********",
        "Dumping member 0",
    ]
    say(session, "act_prof_modify_member shared answer 0 4")
    assert probe(engine, "indirect", a=1)[0] == 4
    say(session, "act_prof_modify_member shared answer 0 => 5")
    assert probe(engine, "indirect", a=1)[0] == 5
    assert say(session, "table_indirect_add indirect 1 =>") == [
        "Error: an indirect entry needs => and a handle after its match fields"
    ]
    say(session, "table_indirect_delete indirect 0")
    assert engine.entries("Tables.indirect") == []


def test_register_is_read_and_reset_as_a_whole(engine: Engine) -> None:
    """Its cells have any width, and several copies."""
    session = Session(engine)
    for register in session.program.registers:
        last = (1 << register.width) - 1
        cells = [0, *([last] * (register.size - 1))]
        for index, cell in enumerate(cells):
            engine.write_register(register.name, index, cell)
        assert say(session, f"register_read {register.name}") == [f"{register.name}= {', '.join(map(str, cells))}"]
        assert say(session, f"register_reset {register.name}") == []
        assert engine.registers(register.name) == [0] * register.size


def test_counter_of_millions_of_cells_is_reset_quickly() -> None:
    """No other client is answered meanwhile."""
    cells, engine = 1 << 22, Engine({})
    counter = {"name": "c", "id": 0, "size": cells, "is_direct": False}
    types = {"h_t": [["a", 32, False]]}
    engine.load(document(header_types=types, headers={"h": "h_t"}, primitives=[], counter_arrays=[counter]))
    for index in (0, cells // 2 + 1, cells - 1):
        engine.write_counter("c", index, Count(packets=index, bytes=1))
    before = time.process_time()
    assert say(Session(engine), "counter_reset c") == []
    assert time.process_time() - before < 2
    assert {engine.read_counter("c", index) for index in (0, cells // 2 + 1, cells - 1)} == {Count(packets=0, bytes=0)}


@pytest.mark.parametrize(
    ("told", "shown", "bursts"),
    [
        (("0.5", "1"), ("0.5", "1.0"), (10, 20)),
        (("0.0000001", "0.0000004"), ("1e-07", "4e-07"), (1, 1)),
    ],
)
def test_meter_rates_are_given_per_microsecond(
    told: tuple[str, str], shown: tuple[str, str], bursts: tuple[int, int], engine: Engine
) -> None:
    """Rates may be below one a second."""
    session = Session(engine)
    name = session.program.meters[0].name
    say(session, f"meter_set_rates {name} 0 {told[0]}:{bursts[0]} {told[1]}:{bursts[1]}")
    assert say(session, f"meter_get_rates {name} 0") == [
        f"0: info rate = {shown[0]}, burst size = {bursts[0]}",
        f"1: info rate = {shown[1]}, burst size = {bursts[1]}",
    ]
    config = engine.read_meter(name, 0)
    per_second = [1e6 * float(rate) for rate in told]
    assert config is not None and [config.committed_rate, config.peak_rate] == pytest.approx(per_second)


def test_all_cells_of_a_direct_meter_are_configured_together(engine: Engine) -> None:
    session = Session(engine)
    say(session, "table_add metered metered_answer 1 => 7", "table_add metered metered_answer 2 => 7")
    assert say(session, "meter_array_set_rates entry_meter 0.5:10 1:20") == []
    say(session, "table_delete metered 1", "table_add metered metered_answer 3 => 7")  # an entry added later
    say(session, "table_add metered metered_answer 4 => 7")
    for handle in (0, 1, 2):
        assert say(session, f"meter_get_rates entry_meter {handle}")[1] == "1: info rate = 1.0, burst size = 20"


@pytest.mark.parametrize(
    ("text", "width", "found"),
    [
        ("0:0:0:0:9:1", 48, 0x0901),
        ("00:0a:B:c:0d:ff", 48, 0x000A0B0C0DFF),
        ("10.0.01.010", 32, 0x0A00010A),
        ("010.000.000.001", 32, 0x0A000001),
        ("2001:db8::1", 128, 0x20010DB8 << 96 | 1),
        ("0x10", 48, 16),
    ],
)
def test_addresses_are_read_as_bmv2_reads_them(text: str, width: int, found: int) -> None:
    assert value(text, width) == found


@pytest.mark.parametrize(
    ("text", "width"),
    [("0:0:0:0:1", 48), ("0:0:0:0:0:100", 48), ("1.2.3", 32), ("1.2.3.256", 32), ("1.2.3.4.5", 32), ("1.2.3.x", 32)],
)
def test_invalid_address_is_refused(text: str, width: int) -> None:
    with pytest.raises(CommandError, match="not a number, nor an address"):
        value(text, width)


def test_direct_meter_has_its_own_name(engine: Engine) -> None:
    session = Session(engine)
    say(session, "table_add metered metered_answer 1 => 7", "meter_set_rates entry_meter 0 0.5:10 1:20")
    assert say(session, "meter_get_rates entry_meter 0")[0] == "0: info rate = 0.5, burst size = 10"
    assert "Invalid meter name (metered)" in say(session, "meter_get_rates metered 0")[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense 1", "*** Unknown syntax: nonsense 1"),
        ("table_add absent send 1 => 2", "Error: Invalid table name (absent): there is"),
        ("table_add exacts absent 1 => 2", "Error: Invalid action of table TestIngress.exacts name (absent)"),
        ("table_add exacts send 1 => 999", "Error: Error while parsing 999 - Parameter is too large: the field has 9"),
        ("table_add exacts send x => 1", "Error: Error while parsing x - not a number, nor an address of 8 bits"),
        ("table_add exacts send 1 2 => 1", "Error: Table TestIngress.exacts needs 1 key fields"),
        ("table_add exacts send 1 =>", "Error: Action TestIngress.send needs 1 parameters"),
        ("table_add prefixes tag 1 => 1", "Error: Invalid match key: 1 needs a prefix length, as in 10.0.0.0/8"),
        ("table_add prefixes tag 1/33 => 1", "Error: prefix length 33 is not in 0..32"),
        ("table_add patterns tag 0&&&0 0->1 0&&&0 => 1 -1", "Error: priority -1 is not in 0..2147483646"),
        ("table_set_timeout exacts 0 -5", "Error: timeout -5 is not in 0..2147483647"),
        ("counter_write seen 0 -1 5", "Error: packets -1 is not in 0..18446744073709551615"),
        ("table_delete exacts 3", "Error: Invalid table operation (INVALID_HANDLE)"),
        ("register_read cells 99", "Error: register TestIngress.cells has cells 0..15, not 99"),
        ("mc_node_associate 1 0", "Error: Invalid PRE operation (INVALID_MGRP_HANDLE)"),
        ("counter_read exacts 0", "Error: Invalid counter name (exacts): there is TestIngress.hits, TestIngress.seen"),
        ("mc_mgrp_create 70000", "Error: mgid 70000 is not in 1..65535"),
        ("mc_mgrp_create 0", "Error: mgid 0 is not in 1..65535"),
        ("mc_node_create 65536 1", "Error: rid 65536 is not in 0..65535"),
        ("mc_node_create -1 1", "Error: rid -1 is not in 0..65535"),
        ("mc_node_create 1 512", "Error: port 512 is not in 0..511"),
        ("mc_node_create 1 -1", "Error: port -1 is not in 0..511"),
        ("mc_node_create 1 3 2 3", "Error: Found duplicate port number '3'"),
        ("mirroring_add 32768 1", "Error: mirror_id 32768 is not in 0..32767"),
        ("mirroring_add 1 512", "Error: egress_port 512 is not in 0..511"),
        ("mirroring_add_mc 1 65536", "Error: mgrp 65536 is not in 1..65535"),
        ("set_queue_rate 1 600", "Error: egress_port 600 is not in 0..511"),
        ("set_queue_rate -1", "Error: rate_pps -1 is not in 0..2147483647"),
        ("set_queue_depth 4294967296", "Error: nb_pkts 4294967296 is not in 0..2147483647"),
        ("set_queue_depth 1 1 1", "Error: priority (of --priority-queues) 1 is not in 0..0"),
        ("table_dump", "Error: Invalid number of args, expected 1 but got 0"),
        ("register_read cells 0x" + "f" * 5000, "Error: index must have at most 3000 characters, got 5002"),
        ("register_write cells 0 0x" + "f" * 2998, "Error: register TestIngress.cells has cells of bit<32>; 0xffff"),
    ],
)
def test_mistakes_are_answered(session: Session, line: str, words: str) -> None:
    assert any(words in said for said in say(session, line))


def test_every_command_prints_its_usage(session: Session) -> None:
    for name in COMMANDS:
        (line,) = say(session, f"help {name}")
        assert f"{name} " in f"{line} ", line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def said_by(engine: Engine, typed: bytes, *client: str, cwd: Path | None = None) -> str:
    """Return the output of a client, a program with its first arguments, for these lines."""
    port = free_port()

    async def scenario() -> str:
        async with serving_commands(engine, port):
            process = await asyncio.create_subprocess_exec(
                *(*client, "--thrift-port", str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd
            )
            return (await process.communicate(typed))[0].decode()

    return asyncio.run(scenario())


def test_client_runs_under_its_bmv2_name(session: Session, tmp_path: Path) -> None:
    make_names(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    typed = b"register_write cells 1 5\nregister_read cells 1\n"
    said = said_by(session.engine, typed, str(tmp_path / "simple_switch_CLI"))
    assert said == f"{INTRO}\n{PROMPT}{PROMPT}cells[1]= 5\n{PROMPT}\n"


def test_client_writes_the_program_to_its_own_folder_and_runs_shell_commands(session: Session, tmp_path: Path) -> None:
    typed = b"write_config_to_file program.json\nshell ls | wc -l\nwrite_config_to_file absent/x\n"
    said = said_by(session.engine, typed, sys.executable, "-m", "kofn_switch.commands.client", cwd=tmp_path)
    refused = "Error: absent/x cannot be written: No such file or directory"
    assert said == f"{INTRO}\n{PROMPT}{PROMPT}1\n\n{PROMPT}{refused}\n{PROMPT}\n"
    assert (tmp_path / "program.json").read_bytes() == PROGRAM.read_bytes()


@pytest.mark.root
@pytest.mark.parametrize("flags", ["", "--thrift-port 9091"])
def test_switch_under_a_bmv2_name_serves_its_client_by_default(flags: str, tmp_path: Path) -> None:
    make_names(tmp_path)
    script = f"""
        ip link set lo up
        simple_switch --no-p4 {flags} >&2 &
        until echo help table_add | simple_switch_CLI {flags}; do kill -0 $! || exit; done
        cat /proc/$!/comm
        kill $!"""
    alone = ["timeout", "60", "unshare", "--net", "bash", "-c", script]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(alone, env=path, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith(INTRO)
    assert said.endswith("\nsimple_switch\n"), "pkill must find the process by name"


@pytest.mark.root
def test_several_switches_start_side_by_side_as_in_a_mininet_topology(tmp_path: Path) -> None:
    """BMv2's simple_switch has no P4Runtime, whose port only one of the switches could take."""
    make_names(tmp_path)
    script = f"""
        ip link set lo up
        program={shlex.quote(str(PROGRAM))}
        for port in 9090 9091 9092 9093 9094 9095; do simple_switch --thrift-port $port "$program" >&2 & done
        for port in 9090 9091 9092 9093 9094 9095; do
            until echo "register_write cells 1 $port" | simple_switch_CLI --thrift-port $port; do sleep 0.1; done
            echo "register_read cells 1" | simple_switch_CLI --thrift-port $port
        done
        ss -Htln | wc -l
        kill $(jobs -p)"""
    alone = ["timeout", "100", "unshare", "--net", "bash", "-c", script]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(alone, env=path, stdout=subprocess.PIPE, text=True, check=True).stdout
    for port in range(9090, 9096):
        assert f"cells[1]= {port}" in said
    assert said.splitlines()[-1] == "6", "nothing but the six processes may listen"


@pytest.mark.slow
def test_names_work_wherever_python_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "a folder ü" / ("long" * 60) / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    make_names(tmp_path)
    for name in NAMES:
        said = subprocess.run([tmp_path / name, "--help"], capture_output=True, text=True, check=True).stdout
        assert "usage: " in said.lower()


def test_folder_of_names_is_printed_in_shell_syntax(tmp_path: Path) -> None:
    folder = tmp_path / "a folder ü"
    command = [sys.executable, "-m", "kofn_switch", "--make-names", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told == f"export PATH='{folder}':$PATH\n"


def test_client_reports_an_absent_switch() -> None:
    command = [sys.executable, "-m", "kofn_switch.commands.client", "--thrift-port", str(free_port())]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[:43]) == (1, "Could not connect to the switch on port " + command[-1][:3])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "is gone: it has closed the connection"),
        (b"\x00\x00\x06\x04\xfe\n", "is none of kofn's: its answer is no line of JSON"),
    ],
)
def test_client_reports_a_server_that_is_no_switch_or_leaves(said: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "kofn_switch.commands.client", "--thrift-port", str(port)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with client, listening.accept()[0] as switch:
            assert client.stdin is not None
            client.stdin.write("show_tables\n")
            client.stdin.close()
            assert switch.recv(100) == b"show_tables\n"
            switch.sendall(said)
            switch.shutdown(socket.SHUT_RDWR)
            assert client.stderr is not None
            assert client.stderr.read().strip() == f"The switch on port {port} {words}"
    assert client.returncode == 1


def test_client_waits_for_an_answer_for_a_limited_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # without accepting connections
        port = str(listening.getsockname()[1])
        command = [sys.executable, "-m", "kofn_switch.commands.client", "--thrift-port", port, "--timeout", "0.1"]
        run = subprocess.run(command, input="show_tables\n", capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stderr.strip()) == (1, f"The switch on port {port} has not answered in 0.1 s")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--timeout 0", "'0' is not a number of seconds above 0"),
        ("--timeout nan", "'nan' is not a number of seconds above 0"),
        ("--timeout soon", "'soon' is not a number of seconds above 0"),
        ("--thrift-port 70000", "'70000' is not a TCP or UDP port, 1 to 65535"),
    ],
)
def test_impossible_client_flags_are_refused(flags: str, words: str) -> None:
    command = [sys.executable, "-m", "kofn_switch.commands.client", *flags.split()]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (run.returncode, words in run.stderr) == (2, True)


def test_client_ends_silently_when_its_output_is_closed() -> None:
    """This happens in `simple_switch_CLI
    head -1`.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "kofn_switch.commands.client", "--thrift-port"]
        client = subprocess.Popen(
            [*command, str(listening.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with client, listening.accept()[0] as switch:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stderr is not None
            client.stdin.write("show_tables\n")
            client.stdin.flush()
            switch.recv(100)
            client.stdout.close()
            switch.sendall(b'"a table\\n"\n')
            assert client.stderr.read() == ""
    assert client.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_ends_the_client_silently() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # tests started in the background ignore SIGINT, and so would their processes
        command = ["env", "--default-signal=INT", sys.executable, "-m", "kofn_switch.commands.client", "--thrift-port"]
        client = subprocess.Popen(
            [*command, str(listening.getsockname()[1])], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with client, listening.accept()[0] as switch:
            assert client.stdin is not None
            client.stdin.write("show_tables\n")
            client.stdin.flush()
            switch.recv(100)
            client.send_signal(signal.SIGINT)
            assert client.communicate() == (None, "")
    assert client.returncode == 130


def test_command_that_is_too_long_is_answered(session: Session) -> None:
    async def scenario(port: int) -> tuple[bytes, bytes]:
        async with serving_commands(session.engine, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x" * (LINE_MOST + 1) + b"\n")
            said = await reader.readline(), await reader.read()
            writer.close()
            return said

    said, rest = asyncio.run(scenario(free_port()))
    assert (json.loads(said), rest) == ("Error: a command of more than 65536 bytes\n", b"")


def test_port_in_use_is_reported(session: Session) -> None:
    async def scenario(port: int) -> None:
        async with serving_commands(session.engine, port):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SwitchError, match="cannot listen"):
        asyncio.run(scenario(taken.getsockname()[1]))
