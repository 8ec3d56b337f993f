"""Any message of a client is carried out or refused with a reason."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4d, p4r, rpc_code, rpc_status
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.p4runtime.bytestring import encode
from kofn_switch.p4runtime.p4info import ActionUse, KeyField, MatchKind, P4Info, Table
from kofn_switch.p4runtime.packet_io import packet_in, packet_out
from kofn_switch.p4runtime.pipeline import Pipeline
from kofn_switch.p4runtime.refusal import Refused, batch_details, not_found
from kofn_switch.p4runtime.session import BACKLOG_MAX
from kofn_switch.p4runtime.streams import Streams
from tests.switch.p4runtime.harness import PROGRAM, Target, bid, exact, p4info, pipeline, primary, table_entry, update
from tests.waiting import PATIENCE_S

INFO = P4Info(p4info())


def ids_of(objects: Any) -> st.SearchStrategy[int]:
    """Draw ids that exist, and some that do not."""
    existing = [item.preamble.id for item in objects]
    return st.sampled_from(existing * 4 + [0, 1, 0xFFFFFFFF])


MESSAGE = p4info()
table_ids, action_ids = ids_of(MESSAGE.tables), ids_of(MESSAGE.actions)
values = st.sampled_from([b"", b"\0", b"\1", b"\xff", b"\1\0", b"\xff" * 4, b"\xff" * 256]) | st.binary(max_size=5)
small = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 33)
wide = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 17)

matches = st.builds(
    lambda field_id, kind: p4r.FieldMatch(field_id=field_id, **kind),
    st.integers(0, 4),
    st.one_of(
        st.just({}),
        st.builds(lambda value: {"exact": p4r.FieldMatch.Exact(value=value)}, values),
        st.builds(lambda v, m: {"ternary": p4r.FieldMatch.Ternary(value=v, mask=m)}, values, values),
        st.builds(lambda v, n: {"lpm": p4r.FieldMatch.LPM(value=v, prefix_len=n)}, values, small),
        st.builds(lambda a, b: {"range": p4r.FieldMatch.Range(low=a, high=b)}, values, values),
        st.builds(lambda value: {"optional": p4r.FieldMatch.Optional(value=value)}, values),
    ),
)
params = st.lists(st.builds(p4r.Action.Param, param_id=st.integers(0, 3), value=values), max_size=3)
actions = st.one_of(
    st.none(),
    st.just(p4r.TableAction()),
    st.just(p4r.TableAction(action_profile_member_id=1)),
    st.builds(lambda i, p: p4r.TableAction(action=p4r.Action(action_id=i, params=p)), action_ids, params),
)
counts = st.none() | st.builds(p4r.CounterData, byte_count=wide, packet_count=wide)
table_entries = st.builds(
    p4r.TableEntry,
    table_id=table_ids,
    match=st.lists(matches, max_size=3),
    action=actions,
    priority=small,
    is_default_action=st.booleans(),
    counter_data=counts,
)
indices = st.none() | st.builds(p4r.Index, index=wide)
data = st.one_of(
    st.just(p4d.P4Data()),
    st.builds(lambda value: p4d.P4Data(bitstring=value), values),
    st.just(p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bool=True)]))),
)
replicas = st.builds(
    lambda port, n: p4r.Replica(egress_port=port, instance=n), st.integers(0, 520), st.integers(0, 65536)
)
byte_replicas = st.builds(lambda port, n: p4r.Replica(port=port, instance=n), values, st.integers(0, 65536))
groups = st.builds(
    lambda number, members: p4r.PacketReplicationEngineEntry(
        multicast_group_entry=p4r.MulticastGroupEntry(multicast_group_id=number, replicas=members)
    ),
    st.integers(0, 9) | st.integers(65534, 65537),
    st.lists(replicas | byte_replicas, max_size=3),
)
configs = st.builds(p4r.DigestEntry.Config, max_timeout_ns=wide, max_list_size=small, ack_timeout_ns=wide)
digest_ids = ids_of(MESSAGE.digests)
entities = st.one_of(
    st.just(p4r.Entity()),
    st.builds(lambda e: p4r.Entity(table_entry=e), table_entries),
    st.builds(lambda e, d: p4r.Entity(direct_counter_entry={"table_entry": e, "data": d}), table_entries, counts),
    st.builds(
        lambda i, n, d: p4r.Entity(counter_entry={"counter_id": i, "index": n, "data": d}),
        ids_of(MESSAGE.counters),
        indices,
        counts,
    ),
    st.builds(
        lambda i, n, d: p4r.Entity(register_entry={"register_id": i, "index": n, "data": d}),
        ids_of(MESSAGE.registers),
        indices,
        data,
    ),
    st.builds(lambda e: p4r.Entity(packet_replication_engine_entry=e), groups),
    st.builds(lambda i, c: p4r.Entity(digest_entry={"digest_id": i, "config": c}), digest_ids, configs),
    st.just(p4r.Entity(value_set_entry=p4r.ValueSetEntry())),
    st.just(p4r.Entity(extern_entry=p4r.ExternEntry())),
)


@pytest.fixture(scope="module")
def loaded() -> Pipeline:
    """Return a pipeline for updates that may leave any state behind."""
    return make_pipeline()


@pytest.fixture(scope="module")
def fresh() -> Pipeline:
    """Return a pipeline for updates that clean up."""
    return make_pipeline()


def make_pipeline() -> Pipeline:
    engine = Engine({}, cpu_port=255)
    engine.load(PROGRAM.read_bytes())
    return Pipeline(engine, pipeline())


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(kind=st.integers(0, 4), entity=entities)
def test_updates_are_carried_out_or_refused(loaded: Pipeline, kind: int, entity: p4r.Entity) -> None:
    try:
        loaded.entities.write(p4r.Update(type=kind, entity=entity))
    except SwitchError as error:
        assert str(error)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(entity=entities)
def test_queries_are_answered_or_refused(loaded: Pipeline, entity: p4r.Entity) -> None:
    try:
        answers = list(loaded.entities.read(entity))
    except SwitchError as error:
        assert str(error)
    else:
        assert all(answer.WhichOneof("entity") == entity.WhichOneof("entity") for answer in answers)


def numbers(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1)


def matching(field: KeyField) -> st.SearchStrategy[p4r.FieldMatch | None]:
    """Draw a well-formed match for a key's field; None: left out."""

    def match(**kind: Any) -> p4r.FieldMatch:
        return p4r.FieldMatch(field_id=field.id, **kind)

    def prefix(value: int, length: int) -> p4r.FieldMatch:
        value = value >> (field.width - length) << (field.width - length)
        return match(lpm={"value": encode(value), "prefix_len": length})

    whole, some = numbers(field.width), st.integers(1, (1 << field.width) - 1)
    built = {
        MatchKind.EXACT: whole.map(lambda value: match(exact={"value": encode(value)})),
        MatchKind.OPTIONAL: whole.map(lambda value: match(optional={"value": encode(value)})),
        MatchKind.LPM: st.builds(prefix, whole, st.integers(1, field.width)),
        MatchKind.TERNARY: st.builds(
            lambda value, mask: match(ternary={"value": encode(value & mask), "mask": encode(mask)}), whole, some
        ),
        MatchKind.RANGE: st.tuples(whole, some).map(
            lambda pair: match(range={"low": encode(max(1, min(pair))), "high": encode(max(pair))})
        ),
    }
    return built[field.kind] if field.kind is MatchKind.EXACT else st.none() | built[field.kind]


def acting(table: Table) -> st.SearchStrategy[p4r.TableAction]:
    def action(use: ActionUse, raw: list[int]) -> p4r.TableAction:
        message = p4r.Action(action_id=use.id)
        for parameter, value in zip(use.action.parameters, raw, strict=True):
            message.params.add(param_id=parameter.id, value=encode(value))
        return p4r.TableAction(action=message)

    uses = [use for use in table.actions if use.in_entries]
    return st.sampled_from(uses).flatmap(
        lambda use: st.builds(action, st.just(use), st.tuples(*(numbers(p.width) for p in use.action.parameters)))
    )


def well_formed(table: Table) -> st.SearchStrategy[p4r.Entity]:
    return st.builds(
        lambda match, action, priority: p4r.Entity(
            table_entry=p4r.TableEntry(
                table_id=table.id, match=[field for field in match if field], action=action, priority=priority
            )
        ),
        st.tuples(*(matching(field) for field in table.key)),
        acting(table),
        st.integers(1, 2**31 - 1) if table.needs_priority else st.just(0),
    )


WRITABLE = [table for table in INFO.tables if len(table.key) and not table.const_entries]


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(entity=st.sampled_from(WRITABLE).flatmap(well_formed))
def test_every_well_formed_entry_is_accepted_and_read_back_equal(fresh: Pipeline, entity: p4r.Entity) -> None:
    def write(kind: int) -> None:
        fresh.entities.write(p4r.Update(type=kind, entity=entity))

    query = p4r.Entity(table_entry=p4r.TableEntry(table_id=entity.table_entry.table_id))
    write(p4r.Update.INSERT)
    assert list(fresh.entities.read(query)) == [entity]
    assert list(fresh.entities.read(entity)) == [entity]
    write(p4r.Update.MODIFY)
    write(p4r.Update.DELETE)
    assert list(fresh.entities.read(query)) == []


@given(st.binary(max_size=40))
def test_packets_from_the_data_plane_are_reported_or_refused(packet: bytes) -> None:
    try:
        message = packet_in(INFO, packet)
    except Refused:
        assert len(packet) < 4
    else:
        assert message.payload == packet[4:]


@given(
    st.lists(st.builds(p4r.PacketMetadata, metadata_id=st.integers(0, 3), value=values), max_size=3),
    st.binary(max_size=20),
)
def test_packets_from_clients_are_accepted_or_refused(metadata: list[p4r.PacketMetadata], payload: bytes) -> None:
    try:
        assert packet_out(INFO, p4r.PacketOut(payload=payload, metadata=metadata))[2:] == payload
    except Refused as refused:
        assert str(refused)


@pytest.mark.parametrize("updates", [1, 50, 100, 1000])
def test_every_code_of_a_large_batch_arrives(updates: int) -> None:
    outcomes = [not_found("x" * 300) if number % 2 else None for number in range(updates)] + [not_found("y")]
    data = batch_details(outcomes)
    status = rpc_status.Status.FromString(data)
    errors = [p4r.Error.FromString(detail.value) for detail in status.details]
    assert [error.canonical_code for error in errors] == [rpc_code.NOT_FOUND if o else rpc_code.OK for o in outcomes]
    assert len(data) < 8192 or updates > 100


def test_client_with_default_limits_gets_the_reasons_of_a_failed_batch(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            absent = [update("DELETE", table_entry("exacts", exact(bytes([number])))) for number in range(100)]
            assert [code for code, _ in await client.outcomes(*absent)] == ["NOT_FOUND"] * 100

    asyncio.run(scenario())


def test_unknown_stream_message_is_reported(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.stream.write(p4r.StreamMessageRequest())
            assert "stream message None is not known" in (await client.hear()).error.message

    asyncio.run(scenario())


def test_errors_do_not_pile_up_for_a_client_that_does_not_read_them() -> None:
    async def requests() -> AsyncIterator[p4r.StreamMessageRequest]:
        for _ in range(2 * BACKLOG_MAX):
            yield p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"from no primary"))

    async def scenario() -> list[p4r.StreamMessageResponse]:
        return [message async for message in Streams(Engine({}), device_id=0).serve(requests())]

    answers = asyncio.run(scenario())
    assert len(answers) == BACKLOG_MAX
    assert all("Not primary" in answer.error.message for answer in answers)


def test_client_that_vanishes_leaves_no_trace(embedded: Target) -> None:
    """Its stream is cancelled silently; the next client with the same election id is accepted."""

    async def scenario() -> None:
        async with primary(embedded, push=False) as first:
            again = first.election_id
        async with embedded.stub() as stub:
            async with asyncio.timeout(PATIENCE_S):
                while (await _bid(stub, again)) is not grpc.StatusCode.OK:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


async def _bid(stub: Any, election_id: int) -> grpc.StatusCode:
    stream = stub.StreamChannel()
    await stream.write(bid(election_id))
    try:
        answer = await stream.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    stream.cancel()
    return grpc.StatusCode.OK if answer.arbitration.status.code == rpc_code.OK else grpc.StatusCode.UNKNOWN
