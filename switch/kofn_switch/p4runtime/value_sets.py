"""ValueSetEntry: the keys that a parser compares with; a write replaces the whole set."""

from collections.abc import Iterator

import grpc
from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.bytestring import decode, encode
from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.p4info import P4Info, ValueSet
from kofn_switch.p4runtime.refusal import Refused, invalid


class ValueSets:
    """The program's value sets as P4Runtime has them; a key is its fields, concatenated without gaps."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write(self, kind: UpdateType, message: p4r.ValueSetEntry) -> None:
        values = self._p4info.value_sets.get(message.value_set_id)
        if kind != p4r.Update.MODIFY:
            raise invalid(f"value set {values.name} can only be MODIFIED: it always exists")
        keys = [_key(values, member) for member in message.members]
        if len(set(keys)) < len(keys):
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"value set {values.name} would have a member twice")
        self._engine.set_value_set(values.name, keys)

    def read(self, query: p4r.ValueSetEntry) -> Iterator[p4r.ValueSetEntry]:
        """Yield one value set, or all value sets for id 0."""
        wanted = query.value_set_id
        for values in [self._p4info.value_sets.get(wanted)] if wanted else self._p4info.value_sets:
            members = [_member(values, key) for key in self._engine.value_set(values.name)]
            yield p4r.ValueSetEntry(value_set_id=values.id, members=members)


def _key(values: ValueSet, member: p4r.ValueSetMember) -> int:
    given: dict[int, int] = {}
    for match in member.match:
        field = values.fields.get(match.field_id)
        what = f"field {field.name} of value set {values.name}"
        if match.WhichOneof("field_match_type") != "exact":
            raise invalid(f"{what} is matched exact, not {match.WhichOneof('field_match_type') or 'unset'}")
        if field.id in given:
            raise invalid(f"{what} is given twice")
        given[field.id] = decode(match.exact.value, field.width, what)
    missing = [field.name for field in values.fields if field.id not in given]
    if missing:
        raise invalid(f"a member of value set {values.name} needs a value for {', '.join(missing)}")
    key = 0
    for field in values.fields:
        key = key << field.width | given[field.id]
    return key


def _member(values: ValueSet, key: int) -> p4r.ValueSetMember:
    parts = []
    for field in reversed(list(values.fields)):
        parts.append(
            p4r.FieldMatch(field_id=field.id, exact=p4r.FieldMatch.Exact(value=encode(key % (1 << field.width))))
        )
        key >>= field.width
    return p4r.ValueSetMember(match=reversed(parts))
