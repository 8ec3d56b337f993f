"""A World whose workers die and rejoin, as Member, Agent.join_running() and Agent._resync() do it."""

from kofn_common.wire.sizes import PARTS
from kofn_host.compression.ledger import Ledger
from kofn_host.protocol.results import BlockId, Result
from tests.host.world import Packet, Worker, World


class Mortal(World):
    """Rule `stash`. A worker's training thread has the replica after the iteration before `working`."""

    have_died = replicas_taken = 0

    # With k = n, a sum is never repeated if the switch and the only worker that has it both lose it: by its ledger that
    # worker has begun a later iteration, and it contributes nothing to this one. If several workers die, perhaps none
    # is left that has a sum before its slot gets another block. may_die() and may_restart exclude these cases.

    def may_die(self, rank: int) -> bool:
        live = self.live(rank)
        slots = (slot.block_id for slot in self.switch.slots if not self.have_died)
        kept = {BlockId(*id) for generation, *id in slots if generation == self.generation}
        return bool(live) and not self.workers[rank].dead and self.account.closed.keys() <= self._held_by(live) | kept

    @property
    def may_restart(self) -> bool:
        behind = any(worker.protocol.iteration < worker.ledger.begun for worker in self.workers)
        return not behind or self.account.closed.keys() <= self.held()

    def die(self, rank: int) -> None:
        """Lose everything but the ledger and packets in transit to others."""
        worker = self.workers[rank]
        self.have_died += 1
        worker.protocol = self.protocol(rank)
        worker.dead, worker.computing, worker.asking, worker.then = True, False, False, ""

    def live(self, but: int) -> list[Worker]:
        return [worker for rank, worker in enumerate(self.workers) if rank != but and not worker.dead]

    def may_come_back(self, rank: int) -> bool:
        return self.workers[rank].dead and not self.uninformed and not self.resuming and bool(self.live(rank))

    def come_back(self, rank: int, peer: int) -> None:
        """Rejoin with a peer's replica; parts sent in the ledger's last two iterations are compared with the peers'
        results.
        """
        worker, iteration = self.workers[rank], self.workers[peer].working
        begun = worker.ledger.begun
        # the previous protocol object may have regrouped while the worker was dead
        worker.protocol = self.protocol(rank)
        self._reopen(worker)
        for other in self.live(rank):
            for result in list(other.protocol.results(begun - 1, begun)):
                self._compare(worker, rank, result)
        assert begun >= iteration or not worker.ledger.sent.unsettled(begun), (
            "no live worker can tell which parts were counted"
        )
        worker.protocol.enter(self.generation)
        worker.protocol.others_reached(begun)
        worker.dead, worker.computing = False, True
        worker.working, worker.complete, worker.batch = iteration, iteration - 1, 0
        self.driver(rank).begin(iteration, self.now)
        for other in self.live(rank):
            self.driver(rank).results_in(list(other.protocol.results(iteration, self.last)), self.now)

    def all_come_back(self) -> None:
        """Let all dead workers rejoin, after the present regroup has ended."""
        for rank in tuple(self.uninformed):
            self.regroup(rank)
        for rank in tuple(self.resuming):
            self.resume(rank)
        for rank, worker in enumerate(self.workers):
            if worker.dead:
                self.come_back(rank, self.workers.index(self.live(rank)[0]))

    def _reopen(self, worker: Worker) -> None:
        ledger = worker.ledger
        worker.ledger = Ledger(ledger._storage, ledger.rank, ledger._codecs, place=ledger.place, age=ledger.age)
        worker.ledger.attach_protocol(worker.protocol.native)

    def _compare(self, worker: Worker, rank: int, result: Result) -> None:
        """Compare a peer's result with the ledger, and change this account accordingly."""
        block = result.id.block
        settled, parts = self._settled(worker, block)
        theirs = sum(1 << part for part in range(PARTS) if result.has(self.place(rank), part))
        if settled == result.id.iteration and parts not in (theirs, 0):
            values, keys = worker.took.pop(block)
            worker.own[block] -= values
            worker.waiting[block] |= keys
            worker.summed[block] -= keys
        if settled < result.id.iteration and theirs:
            self.settle_result(worker, rank, result)
        worker.ledger.settle_results(result)
        worker.ledger.reconcile(result)

    @staticmethod
    def _settled(worker: Worker, block: int) -> tuple[int, int]:
        """Return the latest iteration whose result is in the ledger, and the worker's parts in it."""
        return divmod(int(worker.ledger._storage.records["settled"][block]), 1 << PARTS)

    def settle_result(self, worker: Worker, rank: int, result: Result) -> None:
        """Settle a result; one that an earlier process has settled must be the same."""
        block = result.id.block
        settled, parts = self._settled(worker, block)
        if settled >= result.id.iteration:
            same = parts == sum(1 << part for part in range(PARTS) if result.has(self.place(rank), part))
            assert settled > result.id.iteration or same, f"{result.id} was settled with another result"
            return
        own, summed = worker.own[block].copy(), worker.summed[block]
        super().settle_result(worker, rank, result)
        worker.took = worker.took | {block: (worker.own[block] - own, worker.summed[block] - summed)}

    def _enter(self, rank: int, current: int) -> None:
        if self.workers[rank].ledger.entered < self.workers[rank].working:
            super()._enter(rank, current)

    def deliver_together(self, rank: int, packets: list[Packet]) -> None:
        if not self.workers[rank].dead:
            super().deliver_together(rank, packets)

    def held(self) -> set[BlockId]:
        """The blocks whose results a live worker has."""
        return self._held_by(self.live(-1))

    def _held_by(self, workers: list[Worker]) -> set[BlockId]:
        return {result.id for worker in workers for result in worker.protocol.results(0, self.last)}

    def resume(self, rank: int) -> None:
        if self.workers[rank].dead:
            self.resuming -= {rank}
        else:
            super().resume(rank)

    def answer(self, rank: int, peer: int) -> None:
        worker, other = self.workers[rank], self.workers[peer]
        iteration = worker.protocol.iteration
        gone = any(not result.values for result in other.protocol.results(iteration, iteration))
        super().answer(rank, peer)
        if gone and worker.protocol.iteration == iteration and worker.protocol.missing and other.working > iteration:
            self._take_replica(rank, other)

    def _take_replica(self, rank: int, peer: Worker) -> None:
        """Take a peer's replica; of the current iteration only the counted parts are learnt."""
        assert self.have_died, "peers have forgotten sums that a worker needs, although none has died"
        worker = self.workers[rank]
        iteration = worker.protocol.iteration
        for other in self.live(rank):
            for result in list(other.protocol.results(iteration, iteration)):
                self._compare(worker, rank, result)
        assert not worker.ledger.sent.unsettled(iteration), "no live worker can tell which parts were counted"
        self.replicas_taken += 1
        worker.complete = peer.working - 1
        self.driver(rank).begin(peer.working, self.now)
        self.advance(rank)
