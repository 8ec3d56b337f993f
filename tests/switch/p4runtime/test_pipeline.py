"""Programs are pushed, read back and refused."""

import asyncio
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r
from google.protobuf import text_format

from kofn_switch.identity import NAME, version
from tests.switch.p4runtime import every_table
from tests.switch.p4runtime.harness import (
    DEVICE_ID,
    P4INFO,
    PROGRAM,
    Target,
    action,
    exact,
    p4info,
    pipeline,
    primary,
    running,
    table_entry,
    update,
)
from tests.waiting import PATIENCE_S

ENTRY = table_entry("exacts", exact(b"\1"), action=action("TestIngress.drop"))


@pytest.mark.slow
def test_nothing_works_before_a_program_is_pushed(tmp_path: Path) -> None:
    async def scenario(target: Target) -> None:
        async with primary(target, push=False) as client:
            for call in (
                client.write(update("INSERT", ENTRY)),
                client.read(table_entry("exacts")),
                client.stub.GetForwardingPipelineConfig(p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE_ID)),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="No forwarding pipeline config set") as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    with running("embedded", tmp_path) as target:
        asyncio.run(scenario(target))


@pytest.mark.parametrize(
    ("response_type", "fields"),
    [
        ("ALL", {"p4info", "p4_device_config", "cookie"}),
        ("COOKIE_ONLY", {"cookie"}),
        ("P4INFO_AND_COOKIE", {"p4info", "cookie"}),
        ("DEVICE_CONFIG_AND_COOKIE", {"p4_device_config", "cookie"}),
    ],
)
@pytest.mark.slow
def test_pipeline_is_read_back(target: Target, response_type: str, fields: set[str]) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            pushed = pipeline(cookie=77)
            await client.push(pushed)
            request = p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
            request.response_type = request.ResponseType.Value(response_type)
            config = (await client.stub.GetForwardingPipelineConfig(request)).config
            assert {field.name for field, _ in config.ListFields()} == fields
            assert config.cookie.cookie == 77
            for name in fields:
                assert getattr(config, name) == getattr(pushed, name)

    asyncio.run(scenario())


def test_wrapper_of_older_bmv2_clients_is_removed(target: Target) -> None:
    """It is a p4.tmp.P4DeviceConfig with reassign and device_data, which the p4lang tutorials push."""
    json, length = PROGRAM.read_bytes(), bytearray()
    size = len(json)
    while size:
        length.append(size & 127 | (128 if size >> 7 else 0))
        size >>= 7

    async def scenario() -> None:
        async with primary(target, push=False) as client:
            config = pipeline()
            config.p4_device_config = b"\x08\x01\x1a" + bytes(length) + json
            await client.push(config)
            await client.write(update("INSERT", ENTRY))

    asyncio.run(scenario())


def test_push_clears_all_state(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            group = p4r.MulticastGroupEntry(multicast_group_id=3, replicas=[p4r.Replica(egress_port=1)])
            flood = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
            await client.write(
                update("INSERT", ENTRY), update("INSERT", p4r.Entity(packet_replication_engine_entry=flood))
            )
            await client.push()
            assert await client.read(table_entry("exacts")) == []
            flood.multicast_group_entry.Clear()
            flood.multicast_group_entry.SetInParent()
            assert await client.read(p4r.Entity(packet_replication_engine_entry=flood)) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("deed", ["VERIFY", "RECONCILE_AND_COMMIT"])
@pytest.mark.slow
def test_push_without_commit_keeps_all_state(embedded: Target, deed: str) -> None:
    """BMv2 is not tested: it cannot take another program after a RECONCILE_AND_COMMIT (1.15.5)."""

    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.write(update("INSERT", ENTRY))
            await client.push(action=deed)
            assert await client.read(table_entry("exacts")) == [ENTRY]

    asyncio.run(scenario())


def other_program() -> p4r.ForwardingPipelineConfig:
    return p4r.ForwardingPipelineConfig(p4info=p4info(), p4_device_config=b" " + PROGRAM.read_bytes())


def with_p4info(old: str, new: str) -> p4r.ForwardingPipelineConfig:
    text = P4INFO.read_bytes()
    assert old.encode() in text
    config = pipeline()
    config.p4info.Clear()
    text_format.Parse(text.replace(old.encode(), new.encode()), config.p4info)
    return config


def with_document(document: bytes) -> p4r.ForwardingPipelineConfig:
    return p4r.ForwardingPipelineConfig(p4info=p4info(), p4_device_config=document)


FORMAT_MISMATCH = {
    "saving nothing": (with_document(b""), "VERIFY_AND_SAVE", "INVALID_ARGUMENT", "both p4info and p4_device_config"),
    "committing a config": (pipeline(), "COMMIT", "INVALID_ARGUMENT", "leave the config unset"),
    "reconciling": (other_program(), "RECONCILE_AND_COMMIT", "UNIMPLEMENTED", "of another program"),
    "nothing to do": (pipeline(), "UNSPECIFIED", "INVALID_ARGUMENT", "VERIFY or VERIFY_AND_COMMIT"),
    "no program": (with_document(b""), "VERIFY", "INVALID_ARGUMENT", "both p4info and p4_device_config"),
    "no p4info": (
        p4r.ForwardingPipelineConfig(p4_device_config=b"{}"),
        "VERIFY_AND_COMMIT",
        "INVALID_ARGUMENT",
        "both p4info",
    ),
    "not JSON": (with_document(b"\0\1"), "VERIFY", "INVALID_ARGUMENT", "not p4c's BMv2 JSON"),
    "not a program": (with_document(b"{}"), "VERIFY_AND_COMMIT", "INVALID_ARGUMENT", "not p4c's BMv2 JSON"),
    "another program's p4info": (
        with_p4info("TestIngress.exacts", "Other.exacts"),
        "VERIFY_AND_COMMIT",
        "INVALID_ARGUMENT",
        "the p4info has table Other.exacts, which the program lacks: one of",
    ),
    "an unknown match kind": (
        with_p4info("match_type: EXACT", 'other_match_type: "fuzzy"'),
        "VERIFY_AND_COMMIT",
        "UNIMPLEMENTED",
        "match field hdr.test.narrow of table TestIngress.exacts has match type fuzzy; one of exact, lpm,",
    ),
    "a width of 0": (with_p4info("bitwidth: 12", "bitwidth: 0"), "VERIFY", "UNIMPLEMENTED", "has no width in bits"),
}


@pytest.mark.root
def test_saved_program_runs_when_it_is_committed(embedded: Target) -> None:
    def answer(value: bytes) -> p4r.Entity:
        return every_table.entry("metered", b"\1", p4r.TableAction(action=every_table.call("metered_answer", value)))

    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            all_rows = p4r.Entity(table_entry=p4r.TableEntry(table_id=every_table.number("metered")))
            await client.push(every_table.pipeline())
            await client.write(update("INSERT", answer(b"\7")))
            await client.push(every_table.pipeline(), "VERIFY_AND_SAVE")
            assert await client.read(all_rows) == []
            ((code, _),) = await client.outcomes(update("DELETE", answer(b"\7")))
            assert code == "NOT_FOUND"
            await client.write(update("INSERT", answer(b"\x09")))
            assert (await every_table.probe(embedded, "metered", a=1))[0] == 7, "the old program must still run"
            await client.push(None, "COMMIT")
            assert await client.read(all_rows) == [answer(b"\x09")]
            assert (await every_table.probe(embedded, "metered", a=1))[0] == 9

    asyncio.run(scenario())


@pytest.mark.parametrize("deed", ["VERIFY_AND_COMMIT", "RECONCILE_AND_COMMIT"])
def test_pushed_program_replaces_a_saved_one(embedded: Target, deed: str) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.push(other_program(), "VERIFY_AND_SAVE")
            await client.push(action=deed)
            await client.write(update("INSERT", ENTRY))
            with pytest.raises(grpc.aio.AioRpcError, match="no config is saved: VERIFY_AND_SAVE one first") as refused:
                await client.push(None, "COMMIT")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert await client.read(table_entry("exacts")) == [ENTRY]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", FORMAT_MISMATCH)
def test_refused_programs_change_nothing(embedded: Target, name: str) -> None:
    config, deed, code, words = FORMAT_MISMATCH[name]

    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.write(update("INSERT", ENTRY))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.push(config, deed)
            assert refused.value.code().name == code
            assert words in (refused.value.details() or "")
            assert await client.read(table_entry("exacts")) == [ENTRY]

    asyncio.run(scenario())


def test_unknown_devices_are_refused(embedded: Target) -> None:
    async def scenario() -> None:
        async with embedded.stub() as stub:
            for call in (
                stub.Write(p4r.WriteRequest(device_id=9)),
                stub.GetForwardingPipelineConfig(p4r.GetForwardingPipelineConfigRequest(device_id=9)),
                stub.SetForwardingPipelineConfig(p4r.SetForwardingPipelineConfigRequest(device_id=9)),
                stub.Capabilities(p4r.CapabilitiesRequest(device_id=9)),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="device id 9 is not known") as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(scenario())


def test_other_atomicities_are_refused(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            with pytest.raises(grpc.aio.AioRpcError, match="ROLLBACK_ON_ERROR is not offered; CONTINUE_ON_ERROR is"):
                await client.write(update("INSERT", ENTRY), atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)

    asyncio.run(scenario())


def test_api_version_is_reported(target: Target) -> None:
    async def scenario() -> None:
        async with target.stub() as stub:
            call = stub.Capabilities(p4r.CapabilitiesRequest())
            major, minor, _ = (await call).p4runtime_api_version.split(".")
            assert (int(major), int(minor)) >= (1, 3)
            assert dict(await call.initial_metadata()).get(NAME) == (version() if target.embedded else None)

    asyncio.run(scenario())


@pytest.mark.slow
def test_switch_answers_while_it_compiles_and_finishes_a_push_that_no_client_waits_for(tmp_path: Path) -> None:
    async def scenario(target: Target) -> None:
        async with primary(target, push=False) as client:
            request = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID, config=pipeline(cookie=5))
            request.action = request.VERIFY_AND_COMMIT
            request.election_id.low = client.election_id
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await client.stub.SetForwardingPipelineConfig(request, timeout=0.1)
            write = asyncio.create_task(client.write(update("INSERT", ENTRY)))  # waits for the push
            answers = 0
            while not write.done():
                await client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=PATIENCE_S)
                answers += 1
            await write
            assert answers > 3
            query = p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
            assert (await client.stub.GetForwardingPipelineConfig(query)).config.cookie.cookie == 5
            assert await client.read(table_entry("exacts")) == [ENTRY]

    with running("embedded", tmp_path, KOFN_CACHE=str(tmp_path)) as target:
        asyncio.run(scenario(target))
