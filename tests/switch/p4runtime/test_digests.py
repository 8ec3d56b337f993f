"""Digests travel from packets to a controller, and are collected by rules (in virtual time)."""

import asyncio
import time
from collections.abc import Iterable

import finsy as fy
import pytest
from finsy.proto import p4r

from kofn_switch.p4runtime.digests import Digests
from kofn_switch.p4runtime.p4info import P4Info
from kofn_switch.p4runtime.refusal import Refused
from tests.switch.p4runtime.harness import Target, frame, object_id, p4info
from tests.targets import read
from tests.waiting import PATIENCE_S

DIGEST = 3
MS = 1_000_000
NAME = "sighting_t"


@pytest.mark.root
@pytest.mark.parametrize(("size", "timeout_ms"), [(1, 0), (2, 200)])
def test_packets_become_digests_at_the_controller(target: Target, size: int, timeout_ms: int) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            entry = fy.P4DigestEntry(NAME, max_list_size=size, max_timeout_ns=timeout_ms * MS, ack_timeout_ns=1000 * MS)
            await switch.insert([entry])
            assert await read(switch, fy.P4DigestEntry(NAME)) == [entry]
            for value in (7, 8, 9):
                target.send(2, frame(DIGEST, value=value))
            seen: list[dict[str, int]] = []
            lists = []
            async with asyncio.timeout(PATIENCE_S):
                async for digests in switch.read_digests(NAME):
                    lists.append(digests.list_id)
                    seen.extend(digests)
                    await switch.write([digests.ack()])
                    if len(seen) == 3:
                        break
            assert seen == [{"value": value, "port": 2} for value in (7, 8, 9)]
            assert lists == sorted(set(lists))

    asyncio.run(scenario())


@pytest.mark.root
def test_digests_without_a_controller_do_not_delay_later_ones(embedded: Target) -> None:
    """A controller that connects late or again gets the digests from then on."""

    async def scenario() -> None:
        entry = fy.P4DigestEntry(NAME, max_list_size=1, ack_timeout_ns=3600_000 * MS)
        async with embedded.client() as switch:
            await switch.insert([entry])
        embedded.send(1, frame(DIGEST, value=1))
        await asyncio.sleep(0.5)  # no message tells when it has been discarded
        async with embedded.client(p4force=False) as switch:
            assert await read(switch, fy.P4DigestEntry(NAME)) == [entry]
            lists = switch.read_digests(NAME)
            heard = asyncio.ensure_future(anext(aiter(lists)))
            await asyncio.sleep(0)  # let it open its queue
            embedded.send(1, frame(DIGEST, value=1))
            assert list(await asyncio.wait_for(heard, 10)) == [{"value": 1, "port": 1}]

    asyncio.run(scenario())


def enabled(size: int = 0, timeout_ms: int = 0, ack_ms: int = 0) -> Digests:
    digests = Digests(P4Info(p4info()))
    digests.write(p4r.Update.INSERT, settings(size, timeout_ms, ack_ms))
    return digests


def settings(size: int = 0, timeout_ms: int = 0, ack_ms: int = 0) -> p4r.DigestEntry:
    config = p4r.DigestEntry.Config(max_list_size=size, max_timeout_ns=timeout_ms * MS, ack_timeout_ns=ack_ms * MS)
    return p4r.DigestEntry(digest_id=object_id(NAME), config=config)


def values(lists: Iterable[p4r.DigestList]) -> list[list[int]]:
    """Return the `value` of every message of every list."""
    return [[int.from_bytes(data.struct.members[0].bitstring, "big") for data in each.data] for each in lists]


def test_full_list_is_sent() -> None:
    digests = enabled(size=2, timeout_ms=100)
    assert values(digests.add(NAME, (1, 0), 0.0)) == []
    assert values(digests.add(NAME, (2, 0), 0.0)) == [[1, 2]]
    assert digests.next_deadline_s() is None


def test_list_is_sent_when_its_first_message_is_old_enough() -> None:
    digests = enabled(size=10, timeout_ms=100)
    assert values(digests.add(NAME, (1, 0), 5.0)) == []
    assert values(digests.add(NAME, (2, 0), 5.09)) == []
    assert values(digests.due(5.09)) == []
    assert digests.next_deadline_s() == 5.1
    assert values(digests.due(5.1)) == [[1, 2]]


def test_without_a_timeout_messages_go_at_once() -> None:
    digests = enabled()
    assert values(digests.add(NAME, (1, 0), 0.0)) == []
    assert values(digests.due(0.0)) == [[1]]


def test_waiting_message_is_not_added_twice() -> None:
    digests = enabled(size=3, timeout_ms=100)
    for value in (1, 1, 2, 1):
        assert values(digests.add(NAME, (value, 0), 0.0)) == []
    assert values(digests.due(0.1)) == [[1, 2]]


def test_unacknowledged_message_is_repeated_only_after_its_timeout() -> None:
    digests = enabled(size=1, ack_ms=1000)
    assert values(digests.add(NAME, (1, 0), 0.0)) == [[1]]
    assert values(digests.add(NAME, (1, 0), 0.9)) == []
    assert values(digests.add(NAME, (1, 0), 1.0)) == [[1]]


def test_acknowledged_message_may_come_again() -> None:
    digests = enabled(size=1, ack_ms=1000)
    (first,) = digests.add(NAME, (1, 0), 0.0)
    digests.acknowledge(p4r.DigestListAck(digest_id=first.digest_id, list_id=first.list_id))
    (second,) = digests.add(NAME, (1, 0), 0.1)
    assert second.list_id > first.list_id


def test_a_list_that_is_full_by_changed_settings_goes() -> None:
    digests = enabled(size=10, timeout_ms=100)
    for value in (1, 2, 3):
        assert values(digests.add(NAME, (value, 0), 0.0)) == []
    digests.write(p4r.Update.MODIFY, settings(size=2, timeout_ms=100))
    assert values(digests.due(0.0)) == [[1, 2, 3]]


@pytest.mark.slow
def test_many_lists_that_wait_for_an_acknowledgement_cost_no_time() -> None:
    digests, lists = enabled(size=1, ack_ms=1000), 40_000
    before = time.process_time()
    assert sum(len(values(digests.add(NAME, (value, 0), 0.0))) for value in range(lists)) == lists
    assert time.process_time() - before < 10
    assert values(digests.add(NAME, (0, 0), 1.0)) == [[0]]


def test_a_changed_ack_timeout_holds_for_lists_that_were_sent() -> None:
    digests = enabled(size=1, ack_ms=1000)
    assert values(digests.add(NAME, (1, 0), 0.0)) == [[1]]
    digests.write(p4r.Update.MODIFY, settings(size=1, ack_ms=500))
    assert values(digests.add(NAME, (1, 0), 0.5)) == [[1]]


def test_another_primary_starts_afresh() -> None:
    digests = enabled(size=1, ack_ms=1000)
    assert values(digests.add(NAME, (1, 0), 0.0)) == [[1]]
    digests.restart()
    assert values(digests.add(NAME, (1, 0), 0.0)) == [[1]]


def test_disabled_digest_is_dropped() -> None:
    digests = enabled(size=1)
    digests.write(p4r.Update.DELETE, settings())
    assert values(digests.add(NAME, (1, 0), 0.0)) == []
    with pytest.raises(Refused, match="digest sighting_t is not enabled"):
        digests.write(p4r.Update.MODIFY, settings())


def test_settings_are_changed_and_read() -> None:
    digests = enabled(size=1)
    with pytest.raises(Refused, match="enabled already; MODIFY it"):
        digests.write(p4r.Update.INSERT, settings())
    digests.write(p4r.Update.MODIFY, settings(size=4))
    assert [entry.config.max_list_size for entry in digests.read(0)] == [4]
    with pytest.raises(Refused, match="max_list_size of digest sighting_t is -1"):
        digests.write(p4r.Update.MODIFY, settings(size=-1))
