"""Random tables with entries, and the graph of nodes that applies them."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from kofn_switch.state.entries import Entry, Exact, Lpm, Match, Range, Ternary
from tests.switch.suite.random_programs.actions import Action
from tests.switch.suite.random_programs.expressions import truth
from tests.switch.suite.random_programs.shape import META, Headers, hexadecimal

KINDS = ("exact", "exact", "ternary", "lpm", "range")
RANKS = ("exact", "lpm", "ternary", "range")  # the kind of a table whose key has several kinds: the last of them here
ENTRIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """One field of a key."""

    header: str
    name: str
    width: int
    kind: str


@dataclass(slots=True, kw_only=True)
class ControlMaker:
    """Makes one pipeline; `entries` are those that the control plane must insert."""

    random: Random
    headers: Headers
    name: str
    actions: list[Action]
    first_id: int
    tame: bool
    entries: list[Entry] = field(default_factory=list)
    _tables: list[dict[str, Any]] = field(default_factory=list)
    _conditions: list[dict[str, Any]] = field(default_factory=list)

    def pipeline(self, number: int, nodes: int) -> dict[str, Any]:
        """Return the JSON of a pipeline of about `nodes` nodes."""
        start = self._sequence(nodes, None)
        return {
            "name": self.name,
            "id": number,
            "init_table": start,
            "tables": self._tables,
            "action_profiles": [],
            "conditionals": self._conditions,
        }

    def _sequence(self, nodes: int, after: str | None) -> str | None:
        while nodes > 0:
            if nodes > 2 and self.random.random() < 0.4:
                inside = self.random.randint(1, nodes - 1)
                after = self._condition(inside, after)
                nodes -= inside + 1
            else:
                after = self._table(after)
                nodes -= 1
        return after

    def _condition(self, nodes: int, after: str | None) -> str:
        then = self.random.randint(0, nodes)
        branches = self._sequence(then, after), self._sequence(nodes - then, after)
        name = f"{self.name}_if{len(self._conditions)}"
        expression = truth(self.headers.readable(self.random), 2)
        self._conditions.append(
            {
                "name": name,
                "id": self.first_id + len(self._conditions),
                "expression": expression,
                "true_next": branches[0],
                "false_next": branches[1],
            }
        )
        return name

    def _table(self, after: str | None) -> str:
        name = f"{self.name}.table{len(self._tables)}"
        actions = self.random.sample(self.actions, min(len(self.actions), self.random.randint(1, 3)))
        key = self._key()
        const = bool(key) and self.random.random() < 0.3
        default = self.random.choice(actions)
        table: dict[str, Any] = {
            "name": name,
            "id": self.first_id + len(self._tables),
            "key": [self._key_document(part) for part in key],
            "match_type": max((part.kind for part in key), key=RANKS.index, default="exact"),
            "type": "simple",
            "max_size": 64,
            "with_counters": self.random.random() < 0.3,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": [action.id for action in actions],
            "actions": [action.name for action in actions],
            "base_default_next": after,
            "next_tables": self._next(actions, after),
            "default_entry": {
                "action_id": default.id,
                "action_const": self.random.random() < 0.5,
                "action_data": [hexadecimal(self._below(width), width) for width in default.parameters],
                "action_entry_const": False,
            },
        }
        rows = self._rows(name, key, actions)
        if const:
            table["entries"] = [self._const_entry(row, key, actions) for row in rows]
        else:
            self.entries += rows
        self._tables.append(table)
        return name

    def _next(self, actions: list[Action], after: str | None) -> dict[str, str | None]:
        """Return the next nodes, sometimes different ones after some actions or after a hit."""
        other = after
        if self.random.random() < 0.3 and self._tables:
            other = self.random.choice([after, self._following(after)])
        if self.random.random() < 0.3:
            return {"__HIT__": other, "__MISS__": after}
        return {action.name: self.random.choice((after, other)) for action in actions}

    def _following(self, after: str | None) -> str | None:
        """Return the successor of the next node; it is never an earlier node, so that the pipeline ends."""
        tables = {table["name"]: table["base_default_next"] for table in self._tables}
        conditions = {item["name"]: item["true_next"] for item in self._conditions}
        return {**tables, **conditions, None: None}[after]

    def _below(self, width: int) -> int:
        return self.random.getrandbits(width)

    def _key(self) -> list[KeyPart]:
        parts, kinds = [], set()
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            header = self.random.choice([META, META, *self.headers.names])
            members = self.headers.fields(header)
            small = [member for member in members if member.name.startswith("k")]
            member = self.random.choice(small if small and self.random.random() < 0.7 else members)
            kind = self.random.choice(KINDS)
            if kind == "lpm" and ("lpm" in kinds or (self.tame and member.width % 8)):
                kind = "exact"
            kinds.add(kind)
            parts.append(KeyPart(header=header, name=member.name, width=member.width, kind=kind))
        return parts

    def _key_document(self, part: KeyPart) -> dict[str, Any]:
        target = [part.header, part.name]
        return {"match_type": part.kind, "name": f"{part.header}.{part.name}", "target": target, "mask": None}

    def _rows(self, table: str, key: list[KeyPart], actions: list[Action]) -> list[Entry]:
        rows: dict[Any, Entry] = {}
        prioritised = any(part.kind not in ("exact", "lpm") for part in key)
        for _ in range(self.random.randint(0, ENTRIES) if key else 0):
            match = tuple(self._match(part) for part in key)
            priority = self.random.randint(1, 4) if prioritised else 0
            action = self.random.choice(actions)
            parameters = tuple(self._below(width) for width in action.parameters)
            rows[match, priority] = Entry(
                table=table, key=match, priority=priority, action=action.name, parameters=parameters
            )
        return list(rows.values())

    def _match(self, part: KeyPart) -> Match:
        ones = (1 << part.width) - 1
        value = self.random.choice((0, 1, ones, self._below(part.width))) & ones
        match part.kind:
            case "exact":
                return Exact(value=value)
            case "lpm":
                length = self.random.choice((0, 1, part.width // 2, part.width))
                return Lpm(value=value & (ones ^ (ones >> length)), prefix_length=length)
            case "range":
                low, high = sorted((value, self._below(part.width)))
                return Range(low=low, high=high)
        mask = self.random.choice((0, 1, ones, self._below(part.width)))
        return Ternary(value=value & mask, mask=mask)

    def _const_entry(self, row: Entry, key: list[KeyPart], actions: list[Action]) -> dict[str, Any]:
        action = next(action for action in actions if action.name == row.action)
        pairs = zip(row.parameters, action.parameters, strict=True)
        return {
            "match_key": [_const_match(match, part) for match, part in zip(row.key, key, strict=True)],
            "action_entry": {
                "action_id": action.id,
                "action_data": [hexadecimal(value, width) for value, width in pairs],
            },
            "priority": 10 - row.priority,
        }


def _const_match(match: Match, part: KeyPart) -> dict[str, Any]:
    def text(value: int) -> str:
        return hexadecimal(value, part.width)

    match match:
        case Exact(value=value):
            return {"match_type": "exact", "key": text(value)}
        case Lpm(value=value, prefix_length=length):
            return {"match_type": "lpm", "key": text(value), "prefix_length": length}
        case Range(low=low, high=high):
            return {"match_type": "range", "start": text(low), "end": text(high)}
        case Ternary(value=value, mask=mask):
            return {"match_type": "ternary", "key": text(value), "mask": text(mask)}
    raise AssertionError(f"{match}: not among the keys of random programs")
