"""A worker that gets results from a peer: what the peer sends, and what the worker does if the peer is silent."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from kofn_common.wire.packet import Kind
from kofn_host.agent import missed_results
from kofn_host.agent.following import Follower
from kofn_host.agent.missed_results import MissedResults
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.instructions import Packed, Send
from kofn_host.protocol.results import BlockId, Result
from tests.waiting import PATIENCE_S

LAYOUT = BlockLayout(blocks=6, words=2, widest=32)


def protocol(window: int = 2) -> Protocol:
    made = Protocol(job=1, rank=1, layout=LAYOUT, slots=8, window=window, rto_s=0.05)
    made.begin(1, 0.0)
    return made


def result(iteration: int, block: int, values: bytes = bytes(512)) -> Result:
    return Result(BlockId(iteration, block), scale=0, lanes=0, k=2, count=2, weight=512, members=5, values=values)


def give(to: Protocol, iteration: int, *blocks: int) -> None:
    to.results_in([result(iteration, block) for block in blocks], 1.0)


def test_follower_gets_each_result_once_also_across_iterations() -> None:
    peer, follower = protocol(), Follower(1)

    def ids() -> list[tuple[int, int]]:
        return [tuple(one.id) for one in follower.fresh(peer)]

    assert ids() == []
    give(peer, 1, 0, 3)
    assert ids() == [(1, 0), (1, 3)]
    assert ids() == []
    give(peer, 1, 1, 2, 4)
    give(peer, 2, 5)  # a later iteration's result that came early
    assert ids() == [(1, 1), (1, 2), (1, 4), (2, 5)]
    give(peer, 1, 5)
    peer.begin(2, 2.0)
    assert ids() == [(1, 5)]
    give(peer, 2, 0)
    assert ids() == [(2, 0)]


def test_late_follower_gets_only_later_results() -> None:
    peer = protocol()
    give(peer, 1, *range(6))
    peer.begin(2, 2.0)
    give(peer, 2, 4)
    assert [one.id for one in Follower(2).fresh(peer)] == [BlockId(2, 4)]


def contributions(sent: Any) -> list[int]:
    return [one.header.block for one in sent if isinstance(one, Send) and one.header.kind == Kind.CONTRIBUTE]


def pulls(sent: Any) -> list[int]:
    return [one.header.block for one in sent if isinstance(one, Send) and one.header.kind == Kind.PULL]


def test_follower_sends_no_pull_and_sends_a_block_once_its_slot_is_free() -> None:
    """Its results come late, so the window would hold back blocks whose slots the others have long left."""
    worker = protocol()
    ready = [(block, Packed(bytes(512), 0, 0, 256)) for block in range(6)]
    assert contributions(worker.contribute_all(ready, now=0.0)) == [0, 1]
    assert contributions(worker.follow(True, 0.1)) == [2, 3, 4, 5]
    give(worker, 2, 0)
    assert worker.left_behind
    assert pulls(worker.timer(0.1)) == []
    give(worker, 1, *range(6))
    assert pulls(worker.begin(2, 1.1)) == []
    give(worker, 3, 0)
    assert pulls(worker.follow(False, 1.2)) == [1, 2], "the switch is asked for what the window allows"


class Receiver:
    """Records the calls, in order."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def take_results(self, results: list[Result]) -> None:
        self.said.append([one.id for one in results])

    def follow(self, follows: bool) -> None:
        self.said.append(follows)


@pytest.mark.parametrize("ends", ["silent", "forgotten"])
def test_worker_asks_the_switch_again_while_its_peer_is_silent_or_has_forgotten(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_results, "FOLLOW_AGAIN_S", 0.01)
    calls = list[tuple[int, int]]()

    async def follow(rank: int, first: int) -> AsyncGenerator[list[Result], None]:
        calls.append((rank, first))
        yield [result(1, 0)]
        if ends == "forgotten":
            yield [result(1, 1, b"")]
            await asyncio.Event().wait()

    async def scenario() -> list[object]:
        receiver = Receiver()
        missed = MissedResults(cast(Any, protocol()), cast(Any, None), cast(Any, receiver), private=False)
        missed.follow(3, follow)
        async with asyncio.timeout(PATIENCE_S):
            while len(calls) < 2:
                await asyncio.sleep(0.001)
        missed.follow(None, follow)
        said = list(receiver.said)
        await asyncio.sleep(0.05)
        assert len(calls) == 2
        missed.close()
        return said

    said = asyncio.run(scenario())
    first = [True, [BlockId(1, 0)]]
    forgotten = [True, [BlockId(1, 1)]] if ends == "forgotten" else []
    assert said[: len(first + forgotten) + 1] == [*first, *forgotten, False]
    assert said[-1] is False
    assert calls == [(3, 1)] * 2
