"""Runs one script on one switch and returns the differences from the script's expectations."""

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from scipy.optimize import linear_sum_assignment

from kofn_switch.compiler.ir.program import Program
from kofn_switch.state.entries import CloneSession, Count, Digest, GroupMember, MemberGroup, MeterConfig, Replica
from tests.switch.suite.executor import Executor
from tests.switch.suite.names import CONDITIONS, by_name, call, entry, member, named, table
from tests.switch.suite.stf import (
    Add,
    AddMember,
    Check,
    Command,
    Expect,
    ExpectDigest,
    Packet,
    Rates,
    SetDefault,
    Statement,
)
from tests.switch.suite.unsupported import NoRegisters


class Target(Protocol):
    """A switch with a program, under test. Its ports are those that the script names.

    If it is not `ordered`, the outputs of one packet may leave a port in any order: BMv2's threads may let a clone
    overtake its original.
    """

    control: Executor
    ordered: bool

    @property
    def program(self) -> Program:
        """The program's model."""

    def send(self, port: int, packet: bytes) -> None:
        """Let a packet arrive."""

    def sent(self) -> dict[int, list[list[bytes]]]:
        """Wait for all packets; return all outputs since the start, by port, with those of one packet together."""

    def digests(self, expected: int) -> list[Digest]:
        """Return the digests since the last call; wait for the expected number if necessary."""


def arranged(packets: list[bytes], expected: Sequence[Expect]) -> list[bytes]:
    """Return the packets in the order that fits the expectations best; there must be at least as many as expected."""
    differ = [[bool(want.differs(packet)) for packet in packets] for want in expected]
    chosen = linear_sum_assignment(differ)[1].tolist() if expected else []
    return [packets[one] for one in chosen] + [packet for one, packet in enumerate(packets) if one not in chosen]


class Run:
    """A script that runs on a target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.differences: list[str] = []
        self._expected: dict[int, list[Expect]] = defaultdict(list)
        self._nodes: list[list[Replica]] = []
        self._groups: dict[int, list[Replica]] = defaultdict(list)
        self._digests: list[ExpectDigest] = []

    def execute(self, statements: Sequence[Statement]) -> list[str]:
        """Return the differences, none if all is as expected. Raises PlaceError, SwitchError."""
        for statement in statements:
            self._execute(statement)
        self._compare()
        return self.differences

    def _execute(self, statement: Statement) -> None:
        match statement:
            case Packet():
                self.target.send(statement.port, statement.data)
            case Expect():
                self._expected[statement.port].append(statement)
            case Add():
                self.target.control.insert(entry(self.target.program, statement))
            case AddMember():
                self.target.control.insert_member(member(self.target.program, statement))
            case SetDefault():
                item = table(self.target.program, statement.table)
                action, parameters = call(item, statement.call)
                self.target.control.set_default(item.name, action.name, parameters)
            case Check():
                self._check(statement)
            case ExpectDigest():
                self._digests.append(statement)
            case Command():
                self._command(statement)
            case Rates():
                self._configure(statement)

    def _command(self, command: Command) -> None:
        control, numbers = self.target.control, command.numbers
        match command.word:
            case "wait":
                self.target.sent()
            case "mc_mgrp_create":
                self._groups[numbers[0]] = []
            case "mc_node_create":
                self._nodes.append([Replica(port=port, instance=numbers[0]) for port in numbers[1:]])
            case "mc_node_associate":
                self._groups[numbers[0]] += self._nodes[numbers[1]]
                control.set_group(numbers[0], self._groups[numbers[0]])
            case "mirroring_add":
                control.set_session(numbers[0], CloneSession(replicas=(Replica(port=numbers[1]),)))
            case "mirroring_add_mc":
                control.set_session(numbers[0], CloneSession(group=numbers[1]))
            case "register_write":
                with contextlib.suppress(NoRegisters):
                    control.write_register(self._register(command.name), *numbers)
            case "group":
                self._add_group(command)
            case "value_set":
                control.set_value_set(named(command.name, self.target.program.value_sets, "value set").name, numbers)
            case "counter_write":
                index, packets, size = numbers
                control.write_counter(self._counter(command.name), index, Count(packets=packets, bytes=size))

    def _add_group(self, command: Command) -> None:
        number, *members = command.numbers
        group = MemberGroup(
            profile=named(command.name, self.target.program.profiles, "action profile").name,
            id=number,
            members=tuple(GroupMember(member=one) for one in members),
        )
        self.target.control.insert_member_group(group)

    def _configure(self, rates: Rates) -> None:
        meter = named(rates.name, by_name(self.target.program.meters), "meter")
        (committed, committed_burst), (peak, peak_burst) = rates.rates
        config = MeterConfig(
            committed_rate=round(committed * 1e6),
            committed_burst=committed_burst,
            peak_rate=round(peak * 1e6),
            peak_burst=peak_burst,
        )
        for index in range(meter.size) if rates.index is None else (rates.index,):
            self.target.control.write_meter(meter.name, index, config)

    def _register(self, name: str) -> str:
        return named(name, by_name(self.target.program.registers), "register").name

    def _counter(self, name: str) -> str:
        return named(name, by_name(self.target.program.counters), "counter").name

    def _check(self, check: Check) -> None:
        try:
            found = self._cell(check)
        except NoRegisters:
            return
        if not CONDITIONS[check.condition](found, check.number):
            cell = f"{check.name}({check.index})"
            self.differences.append(f"line {check.line}: {cell} is {found}, not {check.condition} {check.number}")

    def _cell(self, check: Check) -> int:
        if check.kind == "register":
            return self.target.control.read_register(self._register(check.name), check.index)
        count = self.target.control.read_counter(self._counter(check.name), check.index)
        return count.packets if check.kind == "packets" else count.bytes

    def _compare(self) -> None:
        sent = self.target.sent()
        for port in sorted(sent.keys() | self._expected.keys()):
            self._compare_port(port, sent.get(port, []), self._expected.get(port, []))
        self._compare_digests()

    def _compare_port(self, port: int, sent: Sequence[list[bytes]], expected: Sequence[Expect]) -> None:
        packets: list[bytes] = []
        for together in sent:
            wanted_now = expected[len(packets) : len(packets) + len(together)]
            packets += together if self.target.ordered else arranged(together, wanted_now)
        if len(packets) != len(expected):
            found = ", ".join(packet.hex() for packet in packets) or "none"
            self.differences.append(f"port {port}: {len(packets)} packets for {len(expected)} expected: {found}")
        for packet, wanted in zip(packets, expected, strict=False):
            if difference := wanted.differs(packet):
                self.differences.append(f"line {wanted.line}: {difference}")

    def _compare_digests(self) -> None:
        if not self._digests:
            return
        found = [(digest.name, digest.fields) for digest in self.target.digests(len(self._digests))]
        wanted = [(digest.name, digest.fields) for digest in self._digests]
        if found != wanted:
            self.differences.append(f"digests {found}, expected {wanted}")
