"""The protocol core against the slot model, under loss, duplication, reordering and changes of k; virtual time."""

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_common.wire.packet import Flag, Kind, KofnHeader, Lanes
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import checksums
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import unpack
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Packed, Send
from kofn_host.protocol.results import BlockId, Result
from tests.host.lab import add, ledger_of, noted, send
from tests.host.protocol.specification.both import Both as Protocol
from tests.host.protocol.specification.slot_model import SlotModel

WORDS, LANES = 1, 64


@dataclass
class Faults:
    """Probabilities of faults in the network."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.001


@dataclass
class Worker:
    protocol: Protocol
    ledger: Ledger
    codec: FixedPoint
    compute_s: list[float]
    results: dict[BlockId, Result] = field(default_factory=dict)
    asked: int = 0
    computed: int = 0


class Cluster:
    """n protocol objects, one slot model and a lossy network between them, in virtual time."""

    def __init__(self, *, workers=3, k=2, blocks=3, iterations=4, slots=64, window=4, faults=None, seed=0, slow=()):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.faults = faults or Faults()
        self.blocks, self.iterations = blocks, iterations
        self.switch = SlotModel(workers=workers, k=k, slots=slots)
        self.now, self.events, self.order = 0.0, [], 0
        codec = FixedPoint(workers=workers, gradient_range=4.0)
        shape = BlockLayout(blocks=blocks, words=WORDS, widest=32)
        self.workers = [
            Worker(
                Protocol(job=1, rank=rank, layout=shape, slots=slots, window=window, rto_s=0.05),
                ledger_of(LedgerStorage.in_memory(blocks=blocks, lanes=LANES), codec, rank),
                codec,
                [self.random.expovariate(200) * (50 if rank in slow else 1) for _ in range(iterations + 1)],
            )
            for rank in range(workers)
        ]
        self.done = [False] * workers
        self.following = set[int]()
        """The workers that get results from a peer, and from the switch only answers to their own packets."""

    def at(self, when, action):
        self.order += 1
        heapq.heappush(self.events, (when, self.order, action))

    def run(self, until_s=600.0):
        for rank in range(len(self.workers)):
            self.follow(rank, self.workers[rank].protocol.begin(1, self.now))
            self.compute(rank)
        while self.events and not all(self.done):
            self.now, _, action = heapq.heappop(self.events)
            assert self.now < until_s, self.explain()
            action()
        assert all(self.done), self.explain()

    def explain(self):
        return {r: (w.protocol.iteration, w.protocol.missing) for r, w in enumerate(self.workers)}

    def compute(self, rank):
        worker = self.workers[rank]
        iteration = worker.protocol.iteration
        self.at(self.now + worker.compute_s[iteration], lambda: self.ready(rank, iteration))

    def ready(self, rank, iteration):
        worker = self.workers[rank]
        if worker.protocol.iteration != iteration:
            return
        gradient = self.numbers.uniform(-0.5, 0.5, self.blocks * LANES).astype(np.float32)
        add(worker.ledger, gradient, iteration)
        send(worker.ledger, iteration, worker.codec)
        worker.computed = iteration
        for block in worker.protocol.missing:
            self.follow(rank, worker.protocol.contribute(block, noted(worker.ledger, block), now=self.now))
        self.advance(rank)

    def advance(self, rank):
        """Begin the next iteration once this one is complete and its gradient is computed."""
        worker = self.workers[rank]
        protocol = worker.protocol
        while not protocol.missing and worker.computed >= protocol.iteration:
            if protocol.iteration == self.iterations:
                self.done[rank] = True
                return
            self.follow(rank, protocol.begin(protocol.iteration + 1, self.now))
            if protocol.left_behind:
                worker.computed = protocol.iteration  # a fast-forward computes nothing
            else:
                self.compute(rank)

    def follow(self, rank, instructions: list[Instruction]):
        worker = self.workers[rank]
        for instruction in instructions:
            match instruction:
                case Send(header=header, values=values):
                    self.transmit(lambda h=header, v=values: self.at_switch(h, v))
                case Deliver(results=results):
                    assert not {result.id for result in results} & worker.results.keys(), (
                        "no result may be delivered twice"
                    )
                    worker.results |= {result.id: result for result in results}
                    worker.ledger.settle_results(*results)
                case Complete():
                    pass
                case AskPeers(id=id):
                    worker.asked += 1
                    self.at(self.now + 0.01, lambda i=id: self.peers_answer(rank, i))
                case EncodeAgain():
                    raise AssertionError("all workers use one scale here")
        if worker.protocol.deadline is not None:
            self.at(worker.protocol.deadline, lambda: self.tick(rank))

    def tick(self, rank):
        self.follow(rank, self.workers[rank].protocol.timer(self.now))

    def peers_answer(self, rank, id):
        for peer in self.workers:
            for result in peer.protocol.results(id.iteration, id.iteration):
                self.follow(rank, self.workers[rank].protocol.results_in([result], self.now))
        self.advance(rank)

    def transmit(self, deliver):
        if self.random.random() < self.faults.loss:
            return
        self.at(self.now + self.random.uniform(0, self.faults.delay_s), deliver)
        if self.random.random() < self.faults.duplication:
            self.at(self.now + self.random.uniform(0, 10 * self.faults.delay_s), deliver)

    def change_following(self, rank, *, again=True):
        """Begin or end to follow a peer, and do so `again` after a random time."""
        self.following ^= {rank}
        self.follow(rank, self.workers[rank].protocol.follow(rank in self.following, self.now))
        if again:
            self.at(self.now + self.random.expovariate(20), lambda: self.change_following(rank))

    def bring(self, rank):
        """Bring a worker the results of its peer every 4 ms while it follows the peer."""
        worker, peer = self.workers[rank], self.workers[(rank + 1) % len(self.workers)]
        if rank in self.following:
            results = list(peer.protocol.results(worker.protocol.iteration, 2**32 - 1))
            self.follow(rank, worker.protocol.results_in(results, self.now))
            self.advance(rank)
        self.at(self.now + 0.004, lambda: self.bring(rank))

    def at_switch(self, header: KofnHeader, values: bytes):
        for rank, answer, sums in self.switch.handle(header, values):
            if answer.kind == Kind.RESULT and rank in self.following:
                continue
            self.transmit(lambda r=rank, a=answer, s=sums: self.at_worker(r, a, s))

    def at_worker(self, rank, header, values):
        self.follow(rank, self.workers[rank].protocol.packet_in(header, values, self.now))
        self.advance(rank)

    def check(self):
        reference = self.workers[0].results
        assert len(reference) == self.blocks * self.iterations
        for worker in self.workers:
            assert worker.results == reference, "replicas must be identical"
            assert worker.ledger.accounts.totals().conserved
        total = np.zeros((self.blocks, LANES), np.int64)
        for id, result in reference.items():
            assert result.count == bin(result.members).count("1")
            total[id.block] += FixedPoint.decode(unpack(result.values, 32), result.scale, result.count)
        counted = sum(worker.ledger.accounts.totals().aggregated for worker in self.workers)
        assert np.array_equal(checksums(total), counted), "the switch's sums must be the ones that the workers counted"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 6),
    data=st.data(),
    blocks=st.integers(1, 6),
    loss=st.sampled_from([0, 0.01, 0.1, 0.3]),
    duplication=st.sampled_from([0, 0.2]),
    delay_s=st.sampled_from([0.0001, 0.02]),
)
def test_no_gradient_is_lost_counted_twice_or_different(seed, workers, data, blocks, loss, duplication, delay_s):
    k = data.draw(st.integers(1, workers))
    slow = data.draw(st.sets(st.integers(0, workers - 1)))
    slots = data.draw(st.sampled_from([8, 64]))
    followers = data.draw(st.sets(st.integers(0, workers - 1), max_size=max(0, workers - 1)))
    faults = Faults(loss, duplication, delay_s)
    window = 2 ** data.draw(st.integers(0, slots.bit_length() - 2))
    cluster = Cluster(
        workers=workers, k=k, blocks=blocks, slots=slots, window=window, faults=faults, seed=seed, slow=slow
    )
    for rank in followers:
        cluster.at(0.0, lambda rank=rank: cluster.change_following(rank))
        cluster.at(0.0, lambda rank=rank: cluster.bring(rank))
    cluster.run()
    cluster.check()


def test_straggler_is_stashed_and_fast_forwards():
    cluster = Cluster(workers=4, k=2, iterations=30, slow=(3,), seed=5)
    cluster.run()
    cluster.check()
    slow = cluster.workers[3]
    assert slow.computed == 30
    assert any(not result.has(3) for result in slow.results.values())
    assert np.any(np.abs(slow.ledger.residual.pending) > 2**30), "the late gradient stays in the residual"


def test_worker_that_follows_a_peer_gets_all_results_without_a_pull():
    cluster = Cluster(workers=4, k=2, iterations=30, slow=(3,), seed=5)
    cluster.at(0.0, lambda: cluster.change_following(3, again=False))
    cluster.at(0.0, lambda: cluster.bring(3))
    cluster.run()
    cluster.check()
    assert cluster.workers[3].protocol.statistics.pulls == 0
    assert any(not result.has(3) for result in cluster.workers[3].results.values())


def test_recycled_slots_are_fetched_from_peers():
    cluster = Cluster(workers=3, k=2, iterations=40, slots=8, window=4, slow=(2,), faults=Faults(loss=0.3), seed=3)
    cluster.run()
    cluster.check()
    assert sum(worker.asked for worker in cluster.workers) > 0


def test_lowered_k_closes_waiting_blocks():
    cluster = Cluster(workers=3, k=3, iterations=3, slow=(2,), seed=1)
    cluster.workers[2].compute_s = [1e9] * 4  # it never computes a gradient
    cluster.done[2] = True
    cluster.at(1.0, lambda: setattr(cluster.switch, "k", 2))
    cluster.run()
    assert cluster.now > 1.0
    assert all(result.members == 0b011 for result in cluster.workers[0].results.values())


def protocol(
    *, blocks: int = 2, words: int = 1, widest: int = 32, summary_words: int = 0, planes: int = 1, **options: Any
) -> Protocol:
    shape = BlockLayout(blocks=blocks, words=words, widest=widest, summary_words=summary_words, planes=planes)
    most: dict[str, Any] = {"job": 1, "rank": 0, "layout": shape, "slots": 8, "window": 2, "rto_s": 0.05}
    return Protocol(**(most | options))


def due(p: Protocol) -> float:
    """Return when the timer rings; a request must be in flight."""
    assert p.deadline is not None
    return p.deadline


def answer(**fields) -> KofnHeader:
    return KofnHeader(**({"kind": Kind.RESULT, "job": 1, "words": 1, "members": 1, "k": 1} | fields))


def test_retransmits_after_the_timeout_and_backs_off():
    p = protocol(blocks=1)
    p.begin(1, 0.0)
    [first] = p.contribute(0, Packed(bytes(256), 3, 0, 1), now=0.0)
    assert p.timer(0.049) == []
    [again] = p.timer(0.05)
    assert again == Send(first.header._replace(flags=Flag.AGAIN), first.values)
    assert p.deadline == pytest.approx(0.15)
    assert p.statistics.retransmissions == 1
    assert p.packet_in(answer(iteration=1, block=0), bytes(256), 0.2)[1:] == [Complete(iteration=1)]
    assert p.deadline is None


def test_contribution_keeps_its_weight():
    """It keeps it while it waits for the window, in a retransmission, and over a regroup."""
    p = protocol(blocks=2, window=1)
    p.begin(1, 0.0)
    [first] = p.contribute(0, Packed(bytes(256), 3, 0, 5), now=0.0)
    assert p.contribute(1, Packed(bytes(256), 3, 0, 7), now=0.0) == []
    [again] = p.timer(due(p))
    p.regroup(9)
    [resumed] = p.resume(1.0)
    assert [sent.header.weight for sent in (first, again, resumed)] == [5, 5, 5]
    delivered, second = p.packet_in(answer(iteration=1, block=0, generation=9, weight=11), bytes(256), 1.0)
    assert (delivered.results[0].weight, second.header.weight) == (11, 7)


@pytest.mark.parametrize(
    "fields", [{"weight": 6}, {"count": 3}, {"members": 5}, {"scale": 1}, {"lanes": 1, "words": 1}]
)
def test_results_that_differ_are_refused(fields):
    p = protocol(words=2)
    p.begin(1, 0.0)
    seen = {"iteration": 2, "block": 0, "words": 2, "count": 2, "weight": 5, "members": 3}
    p.packet_in(answer(**seen), bytes(512), 0.0)
    p.packet_in(answer(**seen), bytes(512), 0.0)
    with pytest.raises(ProtocolError, match=r"count 2, weight 5, lanes 0, scale 0\) here.*replicas have parted"):
        p.packet_in(answer(**(seen | fields)), bytes(512), 0.0)


def test_result_with_members_only_ends_its_iteration() -> None:
    """No worker applies it, and this one contributes nothing more: otherwise the sum might be repeated for it alone."""
    p = protocol(blocks=2)
    p.begin(1, 0.0)
    known = Result(BlockId(1, 0), scale=3, lanes=0, k=0, count=0, weight=0, members=6, values=b"")
    assert [(each.header.kind, each.header.block) for each in p.results_in([known], 0.0)] == [
        (Kind.PULL, 0),
        (Kind.PULL, 1),
    ]
    assert p.contribute(1, Packed(bytes(256), 0, 0, 1), now=0.0) == []
    assert p.missing == [0, 1]
    assert list(p.native.results(1, 1)) == []


def test_block_leaves_when_the_one_a_window_before_it_has_closed():
    """Its neighbours may close in any order."""
    p = protocol(blocks=6, window=2)
    p.begin(1, 0.0)
    sent = [p.contribute(block, Packed(bytes(256), 0, 0, 1), now=0.0) for block in range(6)]
    assert [len(s) for s in sent] == [1, 1, 0, 0, 0, 0]
    for closed, leaves in ((1, [3]), (3, [5]), (0, [2]), (2, [4])):
        out = p.packet_in(answer(iteration=1, block=closed), bytes(256), 0.0)
        assert [i.header.block for i in out if isinstance(i, Send)] == leaves


def test_blocks_are_numbered_consecutively_over_all_iterations():
    """So blocks that share a slot are as far apart as possible, whichever blocks an iteration leaves out."""
    p = protocol(blocks=4, slots=8, window=4)
    slots = []
    for iteration, blocks, first in ((1, [0, 3], 10), (2, [1], 12), (3, [0, 1, 2], 13)):
        p.begin(iteration, 0.0, blocks, first=first)
        for block in blocks:
            slots += [one.header.slot for one in p.contribute(block, Packed(bytes(256), 0, 0, 1), now=0.0)]
            p.packet_in(answer(iteration=iteration, block=block), bytes(256), 0.0)
    assert slots == [(10 + place) % 8 for place in range(6)]


def test_stale_asks_peers_once_for_each_timeout():
    p = protocol(blocks=1)
    p.begin(1, 0.0)
    p.contribute(0, Packed(bytes(256), 0, 0, 1), now=0.0)
    stale = answer(kind=Kind.STALE, iteration=1, block=0)
    assert p.packet_in(stale, bytes(256), 0.01) == [AskPeers(id=BlockId(1, 0), stale_in=0)]
    assert p.packet_in(stale, bytes(256), 0.02) == []
    assert p.timer(0.06) == []
    assert len(p.timer(0.08)) == 1
    assert p.packet_in(stale, bytes(256), 0.09) == [AskPeers(id=BlockId(1, 0), stale_in=0)]


def test_result_with_exchanged_words_of_its_iteration_leaves_no_worker_behind():
    p = protocol(blocks=1)
    p.begin(3, 0.0)
    p.contribute(0, Packed(bytes(256), 0, 0, 1), now=0.0)
    assert p.packet_in(answer(iteration=3 << 16, block=0), bytes(256), 0.01) == []
    assert not p.left_behind
    assert p.statistics.foreign == 1


def test_sums_of_votes_have_the_planes_of_this_job():
    p = protocol(blocks=1, widest=1, planes=3)
    p.begin(1, 0.0, lanes=4)
    [sent] = p.contribute(0, Packed(bytes(256), 7, 4, 1), now=0.0)
    assert (sent.header.lanes, sent.header.words) == (4, 1)
    counts = answer(iteration=1, block=0, lanes=4, words=3, scale=7)
    refused = answer(kind=Kind.FORMAT_MISMATCH, iteration=1, block=0, lanes=4, words=1, scale=7)
    assert p.packet_in(refused, bytes(256), 0.01) == [], "a refusal has the length of the refused contribution"
    for words in (1, 2, 4):
        with pytest.raises(ProtocolError, match="number of words"):
            p.packet_in(counts._replace(words=words), bytes(256 * words), 0.01)
    assert p.packet_in(counts, bytes(range(256)) * 3, 0.01)[-1] == Complete(iteration=1)
    assert [result.values for result in p.results_of(1)] == [bytes(range(256)) * 3]


def test_sum_for_one_recipient_is_checked_against_the_plan():
    """The others get its members. A sum for an unexpected recipient is an error, since its values might be nowhere."""
    p = protocol(blocks=2)
    p.begin(1, 0.0)
    p.received([1, 0])
    sent = p.contribute_all([(block, Packed(bytes(256), 7, 0, 1)) for block in (0, 1)], now=0.0)
    assert [one.header.recipient for one in sent] == [1, 0]
    short = answer(iteration=1, block=0, recipient=1, words=0)
    with pytest.raises(ProtocolError, match="block 0 of iteration 1 is summed for worker 2, here it is worker 1's"):
        p.packet_in(short._replace(recipient=2), b"", 0.01)
    assert p.packet_in(short, b"", 0.01) != []
    with pytest.raises(ProtocolError, match="block 1 of iteration 1 is summed for worker 1, here it is worker 0's"):
        p.packet_in(short._replace(block=1), b"", 0.01)
    assert p.packet_in(answer(iteration=1, block=1, recipient=0), bytes(256), 0.01)[-1] == Complete(iteration=1)
    assert [len(result.values) for result in p.results_of(1)] == [0, 256]


@pytest.mark.parametrize("bitmaps", [1, 2, 255])
def test_member_bitmaps_in_a_job_without_racks_are_refused(bitmaps):
    """Otherwise the bitmaps' bytes would count as values."""
    p = protocol(blocks=1)
    p.begin(1, 0.0)
    p.contribute(0, Packed(bytes(256), 7, 0, 1), now=0.0)
    with pytest.raises(ProtocolError, match=f"0 member bitmaps in a job with job.racks = 1, got {bitmaps}"):
        p.packet_in(answer(iteration=1, block=0, bitmaps=bitmaps), bytes(32 * bitmaps + 256), 0.01)


def test_refused_block_is_encoded_again_at_the_slots_scale():
    p = protocol(blocks=1)
    p.begin(1, 0.0)
    p.contribute(0, Packed(bytes(256), 7, 0, 1), now=0.0)
    out = p.packet_in(answer(kind=Kind.FORMAT_MISMATCH, iteration=1, block=0, scale=9), bytes(256), 0.01)
    assert out == [EncodeAgain(block=0, part=0, counts=True, scale=9, lanes=Lanes.BITS_32)]
    [again] = p.contribute(0, Packed(bytes(256), 9, 0, 1), now=0.01)
    assert again.header.scale == 9
    copy = answer(kind=Kind.FORMAT_MISMATCH, iteration=1, block=0, scale=9)
    assert p.packet_in(copy, bytes(256), 0.02) == [], "a repeated packet is ignored"
    with pytest.raises(ProtocolError, match="number of words"):
        p.packet_in(copy._replace(flags=Flag.OTHER_WORDS), bytes(256), 0.02)


def test_results_of_a_later_iteration_start_pulls():
    p = protocol(blocks=2)
    p.begin(1, 0.0)
    out = p.packet_in(answer(iteration=2, block=0, members=2), bytes(256), 0.0)
    assert [(i.header.kind, i.header.block) for i in out] == [(Kind.PULL, 0), (Kind.PULL, 1)]
    assert p.contribute(0, Packed(bytes(256), 0, 0, 1), now=0.0) == [], (
        "a block that others have closed takes no contribution"
    )
    assert p.left_behind


def test_foreign_and_late_packets_change_nothing():
    p = protocol()
    p.begin(3, 0.0)
    assert p.packet_in(answer(job=2, iteration=3), bytes(256), 0.0) == []
    assert p.packet_in(answer(kind=Kind.CONTRIBUTE, iteration=3), bytes(256), 0.0) == []
    assert p.packet_in(answer(iteration=2), bytes(256), 0.0) == []
    assert p.packet_in(answer(iteration=3, block=2), bytes(256), 0.0) == []
    assert p.statistics.foreign == 2
    assert p.missing == [0, 1]


def test_misuse_is_refused():
    with pytest.raises(ProtocolError, match="window must divide 4"):
        protocol(window=5)
    p = protocol()
    p.begin(1, 0.0)
    with pytest.raises(ProtocolError, match="has open blocks"):
        p.begin(2, 0.0)


def contribute_all(p: Protocol, now: float = 0.0) -> None:
    for block in list(p.missing):
        p.contribute(block, Packed(bytes(256), 0, 0, 1), now=now)


def sent_again(instructions: list[Instruction]) -> list[int]:
    return [instruction.header.block for instruction in instructions if isinstance(instruction, Send)]


def test_overtaken_block_is_retransmitted_early():
    p = protocol(blocks=6, slots=16, window=8)
    p.begin(1, 0.0)
    contribute_all(p)
    assert sent_again(p.packet_in(answer(iteration=1, block=1), bytes(256), 0.002)) == []
    assert due(p) < 0.004
    assert sent_again(p.timer(due(p))) == [0]
    assert sent_again(p.packet_in(answer(iteration=1, block=4), bytes(256), 0.01)) == []
    assert sorted(sent_again(p.timer(0.012))) == [2, 3], "block 0 is younger than block 4 now"


def test_block_overtaken_by_a_higher_level_is_not_missing():
    """Others send a block of a higher level as soon as it is ready, before waiting blocks of lower levels."""
    p = protocol(blocks=6, slots=16, window=8)
    p.begin(1, 0.0)
    p.in_pieces(np.array([1, 1, 2, 2, 1, 1]))
    contribute_all(p)
    p.packet_in(answer(iteration=1, block=3), bytes(256), 0.002)
    assert due(p) < 0.004
    assert sent_again(p.timer(due(p))) == [2], "blocks of level 1 were sent before, but are not missing"
    p.packet_in(answer(iteration=1, block=2), bytes(256), 0.004)
    assert sent_again(p.timer(0.0079)) == [], "no retransmission before the timeout"
    p.packet_in(answer(iteration=1, block=4), bytes(256), 0.0079)
    assert sorted(sent_again(p.timer(due(p)))) == [0, 1], "all blocks of a level are retransmitted together"


def test_block_overtaken_by_a_lower_level_is_missing_later():
    """Others may have had no other block to send while they computed it; or it is lost."""
    p = protocol(blocks=3, slots=16, window=8, rto_s=0.05)
    p.begin(1, 0.0)
    p.in_pieces(np.array([2, 1, 1]))
    contribute_all(p)
    p.packet_in(answer(iteration=1, block=1), bytes(256), 0.002)
    p.packet_in(answer(iteration=1, block=2), bytes(256), 0.003)
    found = next(at for at in np.arange(0.003, 1.0, 0.001) if sent_again(p.timer(at)) == [0])
    assert 0.004 < found < 0.1


def test_overtaken_block_is_missing_later_after_a_refusal():
    """Other workers encode refused blocks again, too, and send them behind later ones; or the block is lost."""
    p = protocol(blocks=6, slots=16, window=8, rto_s=0.05)
    for iteration in (1, 2):
        now = float(iteration)
        p.begin(iteration, now)
        contribute_all(p, now)
        if iteration == 1:
            p.packet_in(answer(kind=Kind.FORMAT_MISMATCH, iteration=1, block=5, scale=9), bytes(256), now + 0.001)
        p.packet_in(answer(iteration=iteration, block=2), bytes(256), now + 0.002)
        found = next(at for at in now + np.arange(0.002, 1.0, 0.0005) if sent_again(p.timer(at)))
        assert (found < now + 0.0045) == (iteration == 2), "a refusal affects only its own iteration"
        for block in (0, 1, 3, 4, 5):
            p.packet_in(answer(iteration=iteration, block=block), bytes(256), now + 0.5)


def test_patience_grows_with_reordering_and_shrinks_with_loss():
    """Another worker's first packet closes block 0 in iterations 1 to 9, later ones are closed by a retransmission."""
    p = protocol(blocks=2, slots=16, window=8)
    windows = []
    for iteration in range(1, 20):
        now = float(iteration)
        p.begin(iteration, now)
        contribute_all(p, now)
        p.packet_in(answer(iteration=iteration, block=1), bytes(256), now + 0.01)
        windows.append(due(p) - now - 0.01)
        assert sent_again(p.timer(due(p))) == [0]
        lost = iteration >= 10
        late = now + (0.05 if lost else 0.03)
        p.packet_in(answer(iteration=iteration, block=0, flags=Flag.AGAIN * lost), bytes(256), late)
    assert windows[0] < 0.001
    assert windows[8] == pytest.approx(0.004)
    assert windows[18] < 0.002


def test_silence_is_probed_with_few_requests_at_first():
    p = protocol(blocks=16, slots=64, window=16, rto_s=0.05)
    p.begin(1, 0.0)
    contribute_all(p)
    counts = []
    for _ in range(6):
        counts.append(len(sent_again(p.timer(due(p)))))
    assert counts == [1, 2, 4, 8, 16, 16]
    p.packet_in(answer(iteration=1, block=14, flags=Flag.AGAIN), bytes(256), 5.0)
    assert len(sent_again(p.timer(6.0))) == 15, "all blocks that were sent before the answered one are retransmitted"


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.LATE])
@pytest.mark.parametrize("lost", [False, True])
def test_probe_has_overtaken_others_only_if_it_was_answered(kind: Kind, lost: bool):
    """If other workers were busy, the answer is to the first attempt, which was sent before all open requests."""
    p = protocol(blocks=6, slots=16, window=8)
    p.begin(1, 0.0)
    contribute_all(p)
    p.packet_in(answer(iteration=1, block=0), bytes(256), 0.002)
    probed = due(p)
    assert sent_again(p.timer(probed)) == [1]
    p.packet_in(answer(kind=kind, iteration=1, block=1, flags=Flag.AGAIN * lost), bytes(256), probed + 0.002)
    assert sorted(sent_again(p.timer(probed + 0.003))) == ([2, 3, 4, 5] if lost else [])


def test_retransmitted_contribution_is_flagged_until_a_regroup():
    """The flag stands beside the hint of its sender's lanes."""
    p = protocol(blocks=1)
    p.begin(1, 0.0, lanes=0)
    [first] = p.contribute_all([(0, Packed(bytes(256), 3, 0, 1))], now=0.0, uses=2)
    [again] = p.timer(due(p))
    p.regroup(9)
    [resumed] = p.resume(1.0)
    assert [sent.header.flags for sent in (first, again, resumed)] == [3, 3 + Flag.AGAIN, 3]
    delivered, _ = p.packet_in(answer(iteration=1, block=0, generation=9, flags=3 + Flag.AGAIN), bytes(256), 1.0)
    assert delivered.hints.tolist() == [2]


def test_silence_between_pieces_is_probed_with_one_request():
    """The others may be computing the next piece. This ends with the iteration."""
    p = protocol(blocks=16, slots=64, window=16, rto_s=0.05)
    p.begin(1, 0.0)
    p.in_pieces()
    contribute_all(p)
    assert [sent_again(p.timer(due(p))) for _ in range(4)] == [[0], [1], [2], [3]]
    for block in range(16):
        p.packet_in(answer(iteration=1, block=block), bytes(256), 5.0)
    p.begin(2, 6.0)
    contribute_all(p, 6.0)
    assert max(len(sent_again(p.timer(due(p)))) for _ in range(5)) == 16


def test_waiting_for_workers_does_not_delay_the_recovery_of_lost_packets():
    p = protocol(blocks=2, slots=16, window=8, rto_s=0.01)
    now = 0.0
    for iteration in range(1, 30):  # k workers are ready after half a second, then answers take 2 ms
        p.begin(iteration, now)
        contribute_all(p, now)
        p.packet_in(answer(iteration=iteration, block=0), bytes(256), now + 0.5)
        p.packet_in(answer(iteration=iteration, block=1), bytes(256), now + 0.502)
        now += 1.0
    p.begin(30, now)
    contribute_all(p, now)
    assert due(p) - now > 0.4, "no retransmission while the others are missing"
    p.packet_in(answer(iteration=30, block=0), bytes(256), now + 0.3)
    assert due(p) - (now + 0.3) < 0.05, "after the iteration progresses, a missing answer is a loss"


def test_slower_queue_is_not_filled_with_retransmissions():
    """In mid-iteration the answers' gaps grow from 1.7 ms to 7 ms; requests and retransmissions are
    answered in turn.
    """
    p = protocol(blocks=100, slots=256, window=8)
    p.begin(1, 0.0)
    contribute_all(p)
    queue, closed, now = list(range(8)), set[int](), 0.0
    while p.missing:
        arrives = now + (0.0017 if len(closed) < 20 else 0.007)
        while p.deadline is not None and p.deadline < arrives:
            queue += sent_again(p.timer(due(p)))
        now, block = arrives, queue.pop(0)
        kind = Kind.LATE if block in closed else Kind.RESULT
        closed.add(block)
        queue += sent_again(p.packet_in(answer(iteration=1, block=block, kind=kind), bytes(256), now))
    assert p.statistics.retransmissions <= 25


@pytest.mark.slow
def test_slower_network_is_learnt():
    """The answers' gaps grow from 1 ms to 8 ms. Requests are repeated unnecessarily for a while, then no longer."""
    p = protocol(blocks=30, slots=64, window=32, rto_s=0.01)
    now, repeated = 0.0, []
    for iteration in range(1, 9):
        p.begin(iteration, now)
        contribute_all(p, now)
        before = p.statistics.retransmissions
        for block in range(30):
            arrives = now + (0.001 if iteration < 5 else 0.008)
            while p.deadline is not None and p.deadline < arrives:
                p.timer(due(p))
            now = arrives
            p.packet_in(answer(iteration=iteration, block=block), bytes(256), now)
        repeated.append(p.statistics.retransmissions - before)
    assert repeated[:4] == [0] * 4
    assert 0 < repeated[4] < 90
    assert repeated[5:] == [0] * 3


def test_answers_together_equal_answers_one_after_another():
    """At the same moment both deliver the same, and leave the same in flight and due."""

    def flown(together):
        p = protocol(blocks=40, window=8, slots=16)
        p.begin(1, 0.0)
        ready = [(block, Packed(bytes(256), 3, 0, 1)) for block in range(40)]
        sent = p.contribute_all(ready, now=0.0)
        delivered = []
        for moment in range(1, 20):
            now = moment / 100
            sent += p.timer(now)
            chosen = [one.header.block for one in sent if (one.header.block + moment) % 3][:6]
            kinds = [Kind.RESULT, Kind.LATE, Kind.RESULT, Kind.STALE, Kind.LATE, Kind.FORMAT_MISMATCH]
            packets = [
                (answer(iteration=1, block=b, kind=k, scale=3), bytes(256)) for b, k in zip(chosen, kinds, strict=False)
            ]
            batches = [packets] if together else [[packet] for packet in packets]
            found = [instruction for batch in batches for instruction in p.packets_in(batch, now)]
            delivered += [result for one in found if isinstance(one, Deliver) for result in one.results]
            sent += [one for one in found if isinstance(one, Send)]
            sent = [one for one in sent if one.header.block in p.missing]
        flights = {block: (f.order, f.sent, f.deadline, f.attempts) for block, f in p._in_flight.by_request.items()}
        return delivered, p.missing, flights, p.deadline, p.statistics

    one_by_one = flown(False)
    assert one_by_one == flown(True)
    assert one_by_one[4].retransmissions and one_by_one[4].stale
    assert len(one_by_one[0]) > 20
