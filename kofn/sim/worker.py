"""A worker in virtual time: the real driver and ledger, with a model of the agent and the training around them."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from kofn.sim.clock import Handle, VirtualClock
from kofn.sim.costs import Costs
from kofn.sim.host import HostedProtocol, VirtualHost
from kofn.sim.machine import Machine
from kofn.sim.network import Link
from kofn.sim.worker_model import WorkerModel, nothing
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2 as pb
from kofn_host.agent.driver import Driver, Effects
from kofn_host.agent.missed_results import kept_iterations
from kofn_host.compression.aggregate import held
from kofn_host.compression.encoder import Finished
from kofn_host.engine.link_pacing import LinkPacing
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.protocol.instructions import AskPeers
from kofn_host.protocol.results import BlockResults, Result
from kofn_host.stopwatch import UNTIMED, Part
from kofn_host.training import Step
from kofn_host.training.attempts import Attempts
from kofn_host.training.loop import Work, report_of
from kofn_host.workload import load_stragglers

KEEPERS = 8
"""The largest number of workers that keep results of many iterations, for other workers to fetch. The results of 1,024
workers would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The environment that all workers share."""

    config: Config
    clock: VirtualClock
    machine: Machine
    costs: Costs
    report: Callable[[int, pb.Report], None]
    ended: Callable[[int], None]
    """Takes an iteration of which some worker has all results."""
    finished: Callable[[int, str], None]


class Worker(Effects):
    """A worker: it computes, contributes, waits and applies.

    `ask_peers` fetches the results of a rank's iteration from the other workers.
    """

    def __init__(
        self,
        around: Surroundings,
        rank: int,
        uplink: Link,
        model: WorkerModel,
        ask_peers: Callable[[int], None],
    ) -> None:
        self._around, self._rank, self._model, self._ask_peers = around, rank, model, ask_peers
        job = around.config.job
        keep = kept_iterations(model.layout) if rank % -(-job.workers // KEEPERS) == 0 else 1
        self.protocol = HostedProtocol(
            job=job.id,
            rank=rank,
            layout=model.layout,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
            keep=keep,
            keep_members=keep,
            workers=job.workers,
            racks=job.racks,
        )
        self.protocol.probe.begin()
        sharing = load_collective(job.collective).sharing(job.workers)
        pace = pacing_rate(around.config.pace_mbps(sharing), model.layout.words_most)
        self.host = VirtualHost(
            around.clock,
            around.machine,
            self.protocol,
            uplink,
            packet_s=around.costs.packet_s,
            pace=pace,
            news=self._news,
            timer=self._time_out,
        )
        self._pacing = LinkPacing(pace, model.layout, self.host.set_pace)
        self._blocking = load_stragglers(around.config, rank)
        self._wakes = random.Random(f"{around.config.run.seed}/{rank}")
        self._done: list[Finished] = []  # ended iterations that the training has not applied yet
        self._iteration, self._attempts = 0, Attempts()  # iteration and attempts of the gradient being computed
        self._current = 0  # the iteration that the worker's parameters are for; the protocol may be in a later one
        self._beyond: int | None = None  # the worker waits until the protocol has left this iteration
        self._then: Callable[[], None]  # called when the protocol has left the iteration `_beyond`
        self._computing: Handle | None = None
        self._driver = Driver(self.protocol, model.encoder, self, workers=job.workers)
        self.set_late_policy(around.config.policy.late_policy)
        self._started_s = 0.0  # when the parameters were ready
        self._ready_s = 0.0  # when the gradient was ready
        self._blocked_s = 0.0  # blocking of the latest gradient
        self._step: Step | None = None  # the worker's step in the iteration that it computes
        self._work: Work  # the worker's latest gradient
        self._own = BlockResults.of(())  # results of the latest iteration that the worker computed

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Set the rule for late gradients."""
        self.host.attentive = True
        self._driver.rule = RULES[late_policy.rule]
        self._model.set_late_policy(late_policy)

    def set_link(self, link: pb.Link) -> None:
        """Take the controller's news of this worker's link."""
        self.host.attentive = True
        now = self._around.clock.time()
        self._pacing.judge(link, self._model.encoder.plan, now)
        self._driver.follow_peer(link.HasField("peer"), now)
        self._go_on()

    # -- iterations

    def start(self) -> None:
        """Begin the first iteration, with parameters that are equal at all workers."""
        self._begin(1)
        self._compute()

    def _compute(self) -> None:
        self._step, self._started_s = None, self._around.clock.time()
        self._iteration = self._current
        self._attempts.begin()
        self._go()

    def _go(self) -> None:
        """Schedule the moment when a gradient with these parameters is ready."""
        self.host.attentive = True
        now_s, compute_s = self._around.clock.time(), self._blocking.compute_s(self._iteration)
        costs, wakes = self._around.costs, self._wakes
        late_s = wake_s(wakes, costs) + wake_s(wakes, costs)  # the worker's thread, then the sending thread
        self._blocked_s = self._blocking.blocking_s(self._iteration, self._attempts.batch, now_s)
        ready_s = now_s + compute_s + self._blocked_s + late_s
        self._computing = self._around.clock.call_at(ready_s, self._computed)
        self._go_on()

    def _computed(self) -> None:
        self._computing = None
        self._around.machine.work(self._around.costs.encode_s, self._until, 0, self._hand_over)

    def _hand_over(self) -> None:
        """Take the results of ended iterations, then contribute by the rule. The caller has advanced the protocol to
        the current iteration."""
        iteration, batch, current = self._iteration, self._attempts.batch, self.protocol.iteration
        if self._step is None:
            work = self._work = self._model.compute(iteration, 0, self._blocked_s)
            self._step, self._ready_s = self._made(work, current - iteration), self._around.clock.time()
            self._attempts.tried(in_time=current == iteration)
        elif batch:
            self._work = self._model.compute(iteration, batch, self._blocked_s)
        if self._done:
            self._hear(lambda: self._until(0, self._hand_over))
            return
        self._driver.follow(self.protocol.held_back(), self._around.clock.time())
        self._model.enter(self._work, iteration, batch, current)
        if current > iteration and self._driver.rule.counts:
            self._step = replace(self._step, catch_up_s=self._around.clock.time() - self._ready_s)
        counts = self._driver.contribute(iteration, batch, self._around.clock.time(), whole=True)
        self.host.set_timer()
        if not counts:
            self._report_and_compute()
        elif self._attempts.repeats(self._driver.rule):
            self._attempts.again()
            self._go()
        else:
            self._until(current, lambda: self._hear(self._report_and_compute))

    def _give_up_if_late(self) -> None:
        """Give up the gradient once its iteration is over, if the rule says so, and begin the current iteration."""
        over = self.protocol.is_over(self._iteration)
        if self._computing is None or not over or not self._attempts.gives_up(self._driver.rule):
            return
        self._computing.cancel()
        self._computing = None
        if self._step is None:
            self._step = self._made(nothing(self._blocked_s, aborted=True))
            self._attempts.tried(in_time=False)
        self._until(self._iteration, lambda: self._hear(self._report_and_compute))

    def _made(self, work: Work, age: int = 0) -> Step:
        """Return the worker's step in this iteration."""
        first_block_s, started_s = self._around.clock.time() - self._started_s, self._started_s
        return Step(iteration=self._iteration, started=started_s, first_block_s=first_block_s, work=work, age=age)

    def _until(self, iteration: int, then: Callable[[], None]) -> None:
        """Wait until the protocol is beyond this iteration, and has the results of all iterations that have ended at
        other workers. Then call `then`."""
        self.host.attentive = True
        self._beyond, self._then = iteration, then
        self._advance()

    def _advance(self) -> None:
        """Advance the protocol to the iteration that is current at the other workers. Call the waiting function if the
        protocol is then beyond the iteration `_beyond`."""
        if self._driver.advance(self._beyond):
            self._beyond = None
            self._then()

    def next_iteration(self) -> None:
        """Keep the ended iteration for the training (see Effects)."""
        self._around.ended(self.protocol.iteration)
        self._done.append(self._driver.end())
        self._begin(self.protocol.iteration + 1)

    def _hear(self, then: Callable[[], None]) -> None:
        """Give ended iterations to the training; then call `then`, unless the training has ended."""
        costs, done = self._around.costs, self._done
        assert self._step is not None
        self._step = replace(self._step, account=self._model.account())
        self._done, self._current = [], self.protocol.iteration
        awake_s = self._around.clock.time() + wake_s(self._wakes, self._around.costs)
        self._around.clock.after(awake_s, self._around.machine.work, costs.apply_s * len(done), self._apply, done, then)

    def _apply(self, done: list[Finished], then: Callable[[], None]) -> None:
        """Apply all finished iterations, in order."""
        now, step, reason = self._around.clock.time(), self._step, None
        assert step is not None
        for finished in done:
            own = finished.results.iteration == step.iteration
            if own:
                self._own = finished.results
            reason = reason or self._model.apply(finished, step if own else None, now)
        if reason is None:
            then()
        else:
            self._tell()
            self._around.finished(self._rank, reason)

    def _report_and_compute(self) -> None:
        self._tell()
        self._around.machine.spend(self._around.costs.report_s)
        self._compute()

    def _tell(self) -> None:
        """Report the iteration to the controller."""
        assert self._step is not None
        assert self._step.work is not None
        found = None
        if (wait := self.protocol.probe.take(self._around.clock.time())) is not None:
            found = self._pacing.measured(wait, self._model.encoder.plan, queued=self.host.queued)
        step = replace(self._step, account=self._model.account(), link=found)
        report = report_of(
            step,
            self._step.work,
            self._model.direction,
            late=bool((self._own.parts_of(self.protocol.place) & 1 == 0).any()),
            held=held(self._own),
            iteration_s=self._around.clock.time() - step.started,
        )
        self._around.report(self._rank, report)

    # -- packets and timers

    def take_results(self, results: list[Result]) -> None:
        self.host.attentive = True
        self._driver.results_in(results, self._around.clock.time())
        self._go_on()

    def _news(self) -> None:
        """Follow the instructions that the host's packets have caused."""
        self.host.attentive = False
        self._driver.follow(self.protocol.news(), self._around.clock.time())
        self._go_on()
        self.host.attentive |= self._model.encoder.narrows

    def _go_on(self) -> None:
        self.host.set_timer()
        self._advance()
        self._give_up_if_late()

    def _time_out(self) -> None:
        """Handle the earliest deadline, which has passed."""
        self.host.attentive = True
        self._driver.timer(self._around.clock.time())
        self.host.set_timer()

    def _begin(self, iteration: int) -> None:
        """Begin the protocol's next iteration. Late gradients are merged into this iteration if the rule says so."""
        self.host.attentive = True
        self._current = self._current or iteration
        self._driver.begin(iteration, self._around.clock.time())
        self.host.set_timer()

    # -- the driver's effects (driver.Effects)

    queued = 0

    def during(self, part: Part) -> AbstractContextManager[object]:
        """Measure nothing: times are those of `costs`."""
        return UNTIMED

    def delivered(self, results: BlockResults) -> None:
        self._model.delivered(results)

    def ask_peers(self, asked: Sequence[AskPeers]) -> None:
        self._ask_peers(self._rank)


def wake_s(wakes: random.Random, costs: Costs) -> float:
    """Return how late a thread wakes up: between 0 and twice the mean, so that every one of several equal workers is
    sometimes the last."""
    return 2 * wakes.random() * costs.wake_s
