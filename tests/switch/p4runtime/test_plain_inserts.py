"""The native part decodes and carries out a Write exactly as the Python control plane does."""

import random
from collections import Counter
from pathlib import Path

import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.entities import attempt
from kofn_switch.p4runtime.pipeline import Pipeline
from tests.switch.fuzz.mutations import changed_message
from tests.switch.fuzz.requests import entities
from tests.switch.p4runtime.every_table import PROGRAMS

ROOT = Path(__file__).parents[3]
SUBJECTS = [
    PROGRAMS / "tables",
    ROOT / "bench" / "entries" / "entries",
    PROGRAMS.parents[1] / "programs" / "control_plane",
]
REQUESTS = 500


def loaded(path: Path) -> tuple[Engine, Pipeline]:
    info = text_format.Parse(path.with_suffix(".p4info.txtpb").read_text(), p4i.P4Info())
    program = path.with_suffix(".json").read_bytes()
    engine = Engine({})
    pipeline = Pipeline(engine, p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=program))
    engine.load(pipeline.document)
    return engine, pipeline


def match(field: p4i.MatchField, chance: random.Random) -> p4r.FieldMatch:
    """Return a match of few values, so that entries repeat; one in five is at or beyond a bound."""
    width, message = field.bitwidth, p4r.FieldMatch(field_id=field.id)
    ones, edge = (1 << width) - 1, chance.random() < 0.2
    first = chance.choice([0, 1, 5, ones, ones + 1, ones >> 1]) if edge else chance.randrange(min(4, ones + 1))
    second = chance.choice([0, 1, ones, ones + 1, ones - 1]) if edge else chance.choice([3, 7, ones]) & ones
    match field.match_type:
        case p4i.MatchField.EXACT:
            message.exact.value = octets(first, chance)
        case p4i.MatchField.LPM:
            length = (
                chance.choice([0, 1, width, width + 1, -1]) if edge else chance.choice([width - 8, width - 1, width])
            )
            message.lpm.value, message.lpm.prefix_len = octets(first << 1, chance), length
        case p4i.MatchField.TERNARY:
            message.ternary.value, message.ternary.mask = octets(first, chance), octets(second, chance)
        case p4i.MatchField.RANGE:
            message.range.low, message.range.high = octets(first, chance), octets(second, chance)
        case _:
            message.optional.value = octets(first, chance)
    return message


def octets(value: int, chance: random.Random) -> bytes:
    """Return the value's bytes, sometimes with leading zeros or empty."""
    shortest = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes(chance.choices([1, 0, 9], [90, 5, 5])[0] if not shortest else chance.choice([0, 0, 0, 9])) + shortest


def matches(table: p4i.Table, chance: random.Random) -> list[p4r.FieldMatch]:
    """Return matches in any order; some are missing, few are repeated."""
    fields = [field for field in table.match_fields for _ in range(chance.choices([0, 1, 2], [10, 85, 5])[0])]
    return [match(field, chance) for field in chance.sample(fields, len(fields))]


def request(info: p4i.P4Info, chance: random.Random) -> p4r.WriteRequest:
    """Return a request that mostly inserts table entries, some of them randomly changed."""
    kinds, tables = [p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE], {t.preamble.id: t for t in info.tables}
    updates = [
        p4r.Update(type=chance.choices(kinds, [8, 1, 1])[0], entity=one)
        for one in entities(info, chance)
        if one.HasField("table_entry") or chance.random() < 0.1
    ]
    for entry in (update.entity.table_entry for update in updates if update.entity.HasField("table_entry")):
        if not entry.is_default_action:
            del entry.match[:]
            entry.match.extend(matches(tables[entry.table_id], chance))
    changed = [changed_message(update, chance, chance.choices((0, 1, 2), (8, 1, 1))[0]) for update in updates]
    return p4r.WriteRequest(updates=chance.sample(changed, min(len(changed), chance.randint(1, 8))))


@pytest.mark.slow
@pytest.mark.parametrize("path", SUBJECTS, ids=lambda path: path.name)
def test_requests_equal_single_updates(path: Path) -> None:
    chance, outcomes = random.Random(1), Counter[str]()
    (engine, pipeline), (other, stepwise) = loaded(path), loaded(path)
    for _ in range(REQUESTS):
        asked = request(pipeline.config.p4info, chance)
        found = [str(outcome) for outcome in pipeline.entities.write_all(asked)]
        wanted = [str(attempt(stepwise.entities.write, update)) for update in asked.updates]
        assert found == wanted, asked
        outcomes.update(outcome.split()[0] for outcome in found)
    for table in pipeline.p4info.tables:
        assert engine.entries(table.name) == other.entries(table.name)
        for entry in engine.entries(table.name):
            place = table.name, entry.key, entry.priority
            assert engine.place(*place) == other.place(*place)
    assert outcomes["None"] > REQUESTS / 4 and len(outcomes) > 4


def test_plain_inserts_are_carried_out_together() -> None:
    engine, pipeline = loaded(SUBJECTS[1])
    (table,) = (one for one in pipeline.p4info.tables if one.name == "Entries.rules")
    (action,) = (one for one in table.actions if one.name == "Entries.send")

    def rule(number: int) -> p4r.Update:
        match = p4r.FieldMatch(field_id=1, ternary=p4r.FieldMatch.Ternary(value=bytes([number]), mask=b"\xff"))
        does = p4r.TableAction(
            action=p4r.Action(action_id=action.id, params=[p4r.Action.Param(param_id=1, value=b"\1")])
        )
        entry = p4r.TableEntry(table_id=table.id, match=[match], action=does, priority=7)
        return p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=entry))

    asked = p4r.WriteRequest(updates=[rule(1), rule(2), rule(2), rule(3)]).SerializeToString()
    done, behind = pipeline.entities.plain.carry_out(asked, 0)
    assert (done, pipeline.entities.plain.carry_out(asked, behind)) == (2, (1, len(asked)))
    assert [entry.key[0].value for entry in engine.entries("Entries.rules")] == [1, 2, 3]
