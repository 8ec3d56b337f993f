"""A random program with its entries and packets, all determined by one seed."""

import json
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from kofn_switch.state.entries import CloneSession, Entry, Replica
from tests.switch.build import field as field_of
from tests.switch.suite.executor import Executor
from tests.switch.suite.random_programs.actions import ALGORITHMS, CELLS, GROUP, PORTS, SESSION, Action, ActionMaker
from tests.switch.suite.random_programs.controls import ControlMaker
from tests.switch.suite.random_programs.expressions import truth
from tests.switch.suite.random_programs.parsers import ERRORS, ParserMaker, ValueSet
from tests.switch.suite.random_programs.shape import AGAIN, ALIASES, META, STANDARD, random_headers

SUM_MAX = 64  # bits of a checksum's field
EMPTY = (*("header_union_stacks", "enums", "meter_arrays", "extern_instances", "force_arith"),)


@dataclass(frozen=True, kw_only=True)
class RandomProgram:
    """The seed and the sizes of a program."""

    seed: int
    states: int = 4
    nodes: int = 8
    egress_nodes: int = 3
    actions: int = 6
    wide: int = 256
    copies: bool = True
    checksums: bool = True
    tame: bool = False  # avoids BMv2's faults, which p4c's output reaches only where p4c cannot know

    @cached_property
    def _made(self) -> tuple[dict[str, Any], list[Entry], list[ValueSet]]:
        random = Random(self.seed)
        headers = random_headers(random, wide=self.wide)
        pipelines: list[dict[str, Any]] = []
        actions: list[Action] = []
        entries: list[Entry] = []
        for number, (name, nodes) in enumerate((("ingress", self.nodes), ("egress", self.egress_nodes))):
            maker = ActionMaker(random=random, headers=headers, egress=number == 1, copies=self.copies, tame=self.tame)
            own = [maker.action(len(actions) + place) for place in range(self.actions)]
            control = ControlMaker(
                random=random, headers=headers, name=name, actions=own, first_id=100 * number, tame=self.tame
            )
            pipelines.append(control.pipeline(number, nodes))
            actions += own
            entries += control.entries
        parser = ParserMaker(random=random, headers=headers, tame=self.tame)
        document: dict[str, Any] = {
            "__meta__": {"version": [2, 23], "compiler": "random"},
            **headers.document(),
            **{name: [] for name in EMPTY},
            "errors": ERRORS,
            "field_aliases": [[f"intrinsic_metadata.{name}", [STANDARD, name]] for name in ALIASES],
            "parsers": [parser.parser(self.states)],
            "parse_vsets": [
                {"name": one.name, "id": number, "compressed_bitwidth": one.width, "max_size": 8}
                for number, one in enumerate(parser.sets)
            ],
            "actions": [action.document() for action in actions],
            "pipelines": pipelines,
            "register_arrays": [{"name": "register", "id": 0, "size": CELLS, "bitwidth": self._register(headers)}],
            "counter_arrays": [{"name": "counter", "id": 0, "size": CELLS, "is_direct": False}],
            "field_lists": [self._fields(random, headers, number) for number in (1, 2)],
            "learn_lists": [self._fields(random, headers, number) for number in (1, 2)],
            "calculations": self._calculations(random, headers),
            "checksums": self._checksums(random, headers) if self.checksums else [],
            "deparsers": [{"name": "deparser", "id": 0, "order": headers.names, "primitives": maker.deparser()}],
        }
        return document, entries, parser.sets

    @staticmethod
    def _register(headers: Any) -> int:
        return int(next(member.width for member in headers.fields(META) if member.name == "r"))

    @staticmethod
    def _fields(random: Random, headers: Any, number: int) -> dict[str, Any]:
        members = random.sample(headers.fields(META), random.randint(1, 3))
        return {
            "id": number,
            "name": f"list{number}",
            "elements": [field_of(META, name) for name in (AGAIN, *(member.name for member in members))],
        }

    @staticmethod
    def _calculations(random: Random, headers: Any) -> list[dict[str, Any]]:
        """Return one calculation for each algorithm and one for the checksum, some with the payload."""
        made = []
        for number, name in enumerate((*(f"hash_{one}" for one in ALGORITHMS), "sum_csum16")):
            choices = [(header, one.name) for header in (META, *headers.names) for one in headers.fields(header)]
            inputs = [field_of(*one) for one in random.sample(choices, random.randint(1, 4))]
            if name == "sum_csum16" and random.random() < 0.5:
                inputs.append({"type": "payload", "value": None})
            made.append({"name": name, "id": number, "algo": name.split("_", 1)[1], "input": inputs})
        return made

    @staticmethod
    def _checksums(random: Random, headers: Any) -> list[dict[str, Any]]:
        header = random.choice(headers.names)
        member = min(headers.fields(header), key=lambda one: one.width)
        if member.width > SUM_MAX:
            return []
        verify, update = random.random() < 0.5, random.random() < 0.5
        condition = truth(headers.readable(random), 1) if random.random() < 0.5 else None
        checksum = {"name": "sum", "id": 0, "target": [header, member.name], "type": "generic"}
        return [{**checksum, "calculation": "sum_csum16", "verify": verify, "update": update, "if_cond": condition}]

    @property
    def document(self) -> bytes:
        """Return the program's JSON."""
        return json.dumps(self._made[0]).encode()

    def prepare(self, executor: Executor) -> None:
        """Load the program, insert its entries, a group and a session."""
        executor.load(self.document)
        executor.set_group(GROUP, [Replica(port=port, instance=number) for number, port in enumerate((1, 2, 2), 7)])
        executor.set_session(SESSION, CloneSession(replicas=(Replica(port=3, instance=3), Replica(port=1, instance=4))))
        for entry in self._made[1]:
            executor.insert(entry)
        for one in self._made[2]:
            executor.set_value_set(one.name, one.keys)

    @property
    def entries(self) -> list[Entry]:
        """The entries that the control plane inserts."""
        return self._made[1]

    def packets(self, count: int) -> list[tuple[int, bytes]]:
        """Return short and long packets with their ports."""
        random = Random(self.seed + 1)
        lengths = [random.choice((random.randint(1, 30), random.randint(30, 200))) for _ in range(count)]
        return [(random.randrange(PORTS), random.randbytes(length)) for length in lengths]
