"""The agent: one worker's place in a job whose sums a switch or a server makes.

Only the agent's event loop touches the protocol and the socket (exchange_loop.py).  The training thread calls
`all_reduce` and waits.  While it waits, the training thread does not touch the residual, so the residual needs no lock.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from kofn_common.config.job import JobSection
from kofn_common.config.late_rules import RULES, LatePolicy, LateRule
from kofn_common.config.model import Average
from kofn_common.results.account import Account
from kofn_common.results.memory import Memory
from kofn_host.agent.data_link import DataLink
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.agent.exchange_loop import Ended, ExchangeLoop
from kofn_host.agent.iteration_wait import GIVE_UP_AFTER_S
from kofn_host.agent.missed_results import settle_restarted
from kofn_host.agent.peer_source import PeerSource
from kofn_host.agent.recorder import Recorder
from kofn_host.agent.worker_link import WorkerLink
from kofn_host.arrays import Integers
from kofn_host.compression.aggregate import aggregate
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.engine.engine import EnginePort, Traffic
from kofn_host.errors import AgentError
from kofn_host.protocol.results import Result
from kofn_host.stopwatch import Stopwatch, within_wait
from kofn_host.transport.transport import Transport
from kofn_host.workload.replica import ReplicaState

log = logging.getLogger(__name__)

STASH = LatePolicy("stash", 1.0)
"""A late gradient enters the next contribution with its full weight."""


class Agent:
    """One worker's place in a job; its gradients go through `encoder`, and its packets over `transport`.

    `average`: as the configuration's model.average; `late_policy`: the treatment of late gradients (the ledger limits
    their age); `recorder` keeps everything sent and received; `give_up_s`: the longest time without a closed block, in
    seconds.

    `recipients`, shape (blocks,), with the summary block as one of the blocks: each block's recipient, EVERYONE or a
    rank; None: every worker receives every block.  If one worker receives a block's sum, the other workers learn only
    the block's members, and no peer holds the sum.  So an iteration must have at most as many blocks as the job has
    slots, and no worker may contribute to the next iteration before all workers have the results of this iteration.
    """

    def __init__(
        self,
        job: JobSection,
        encoder: Encoder,
        transport: Transport,
        *,
        average: Average = "gradients",
        late_policy: LatePolicy = STASH,
        recorder: Recorder | None = None,
        give_up_s: float = GIVE_UP_AFTER_S,
        recipients: Integers | None = None,
    ) -> None:
        self.decision = 0
        """Number of the last Decision of the controller that this worker has heard."""
        self.encoder, self.ledger = encoder, encoder.ledger
        encoder.window = job.window
        if transport.pace is not None:
            encoder.credit = transport.pace.credit_packets(job.words)
        self._average, self._private = average, recipients is not None
        self._link = DataLink(transport, job.packets)
        self._exchanges = ExchangeLoop(
            job, encoder, self._link, average=average, recorder=recorder, give_up_s=give_up_s, recipients=recipients
        )
        self.protocol = self._exchanges.protocol
        self.link = WorkerLink(
            self.protocol, encoder, self._exchanges.missed, transport.pace, follows=not self._private
        )
        self.set_late_policy(late_policy)

    async def start(
        self,
        first_iteration: int,
        generation: int,
        peer_source: PeerSource,
        *,
        reached: int = 0,
        state: ReplicaState | None = None,
        exact_port: EnginePort | None = None,
    ) -> None:
        """Listen, and begin the first iteration; `reached`: an iteration that another worker is known to have begun.

        `state`: the peer's replica from which training continues, with the plan of this iteration; None: a new job.
        `exact_port`: another job's protocol, whose packets use the same socket.
        """
        self.loop = asyncio.get_running_loop()
        self._exchanges.start(
            first_iteration, generation, peer_source, reached=reached, state=state, exact_port=exact_port
        )

    async def close(self) -> None:
        """Stop listening and close the socket."""
        self._exchanges.missed.close()
        self._link.close()

    # -- for the training thread

    @property
    def iteration(self) -> int:
        """The iteration that the training thread works on."""
        return self._exchanges.iteration

    @property
    def over(self) -> threading.Event:
        """Set while the training thread's iteration is over elsewhere: the gradient of that iteration is late."""
        return self._exchanges.over

    @property
    def entered(self) -> bool:
        """Whether the current iteration's gradient is in the ledger already: it was computed before a restart."""
        return self.ledger.entered == self.iteration

    @property
    def rule(self) -> LateRule:
        """The rule for late gradients."""
        return self._exchanges.driver.rule

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
        """Contribute a gradient; if it counts among the k, wait for the end of the iteration that it enters.

        If the gradient's iteration is over elsewhere, `missed` is called with the ended iterations, and returns whether
        to continue.  If so, the gradient enters the current iteration by the rule for late gradients.  `given.stream`
        gets the mean of the first iteration that ended.  GradientError if the gradient is not finite; AgentError after
        `give_up_s` without a result or piece.
        """
        values = given.gradient if given.stream is None else given.stream.pieces.values
        elements = self.encoder.coding.elements
        if values is not None and values.shape != (elements,):
            raise AgentError(f"a gradient must have the shape ({elements},), got {values.shape}")
        begun = self.iteration if given.begun is None else given.begun
        exchange = self._exchange(given, begun, ())
        while exchange.handed_s is None:
            if not missed(exchange):
                return replace(exchange, missed=exchange.updates, ended=())
            exchange = self._exchange(given, begun, exchange.updates)
        return exchange

    def catch_up(self) -> list[Update]:
        """Return the updates that the others finished before this worker joined; none if this worker is not behind."""
        return self.skip() if self.protocol.left_behind else []

    def skip(self) -> list[Update]:
        """Contribute nothing to the current iteration; return the updates up to its end."""
        ended = asyncio.run_coroutine_threadsafe(self._exchanges.skip(), self.loop).result()
        return [*updates_of(ended, self.encoder, self._average)]

    def account(self) -> Account:
        """Return the account of this worker's gradients so far."""
        return self.ledger.accounts.account()

    def _exchange(self, given: Contribution, begun: int, missed: Sequence[Update]) -> Exchange:
        """Try once; contribute nothing if the current iteration turns out to be over."""
        watch = Stopwatch()
        watch.turn("wait")
        call = self._exchanges.exchange(given, begun, None if missed else given.out)
        reached = asyncio.run_coroutine_threadsafe(call, self.loop).result()
        watch.turn("decode")
        ended = [*updates_of(reached.ended, self.encoder, self._average)]
        first = (*missed, *ended)[:1]
        if given.stream is not None and first and not isinstance(first[0], ReplicaState):
            given.stream.finish(first[0].mean)
        return Exchange(
            handed_s=reached.handed_s,
            age=reached.age,
            missed=missed,
            ended=ended,
            times=within_wait(watch.times(), reached.times),
            reduced=self._exchanges.gradient.reduced,
        )

    # -- for the management network, on the event loop

    @property
    def generation(self) -> int:
        """The generation of the slots in use."""
        return self.protocol.generation

    async def join_first(
        self, iteration: int, generation: int, peer_source: PeerSource, state: ReplicaState | None = None
    ) -> None:
        """Begin a new job, see Reducer; AgentError if the ledger belongs to an earlier run."""
        if self.ledger.begun not in (0, iteration - 1):
            raise AgentError(
                f"the job starts, but this worker's ledger is in iteration {self.ledger.begun} of an earlier run:"
                " remove the file, or choose another --metrics"
            )
        await self.start(iteration, generation, peer_source, state=state)

    async def join_running(
        self, generation: int, peer_source: PeerSource, ask: Callable[[], Awaitable[ReplicaState]]
    ) -> ReplicaState:
        """Settle the blocks that this worker had sent before it died, then join, see Reducer."""
        state, begun = await ask(), self.ledger.begun
        await settle_restarted(self.ledger, peer_source, over=begun <= state.iteration)
        self.protocol.statistics.resyncs += 1
        log.info("joined: parameters after iteration %d; own ledger was in iteration %d", state.iteration, begun)
        await self.start(state.iteration + 1, generation, peer_source, reached=begun, state=state)
        await self._exchanges.missed.take_all()  # if the switch has restarted meanwhile, it has lost these results
        return state

    def held(self, first: int, last: int) -> Iterable[Result]:
        with self.protocol.held():  # otherwise the engine may reuse the memory of a forgotten result
            return list(self.protocol.results(first, last))

    def regroup(self, generation: int) -> None:
        """Stay silent until resume(): the switch has lost the job's slots.  A job with recipients fails."""
        self.protocol.regroup(generation)
        self._exchanges.missed.lose("the switch was restarted")

    async def resume(self, generation: int) -> None:
        """Retransmit, see Reducer.  With recipients, do nothing: a second sum would double or lose gradients."""
        if not self._private:
            await self._exchanges.resume(generation)

    def fail(self, error: Exception) -> None:
        """Raise this error in the training thread's call."""
        self._exchanges.fail(error)

    def set_late_policy(self, policy: LatePolicy) -> None:
        """Apply this policy to late gradients from now on; the limit of their age stays."""
        self._exchanges.driver.rule = RULES[policy.rule]
        with self.protocol.held():
            self.ledger.age = self.ledger.age.under(policy)
            if (reduction := self.protocol.reduction) is not None:
                self.ledger.reconsider(reduction)

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """Return the counters of the socket and the protocol."""
        traffic = self.traffic
        counts = ("bytes_sent", "bytes_received", "packets_sent", "packets_received", "send_failures")
        statistics = asdict(self.protocol.statistics) | {name: getattr(traffic, name) for name in counts}
        return statistics | {"checksum_errors": traffic.damaged}

    @property
    def traffic(self) -> Traffic:
        """The counters of the socket."""
        return self._link.traffic

    @property
    def memory(self) -> Memory:
        """The memory of pending gradients."""
        return self.ledger.accounts.memory

    def totals(self) -> LedgerTotals:
        return self.ledger.accounts.totals()


def updates_of(ended: Iterable[Ended], encoder: Encoder, average: Average) -> Iterator[Update]:
    """Yield the updates that training applies, in order."""
    for end in ended:
        if isinstance(end, ReplicaState):
            yield end
        else:
            finished, sums = end
            yield aggregate(finished, encoder.coding, rank=encoder.ledger.rank, average=average, sums=sums)
