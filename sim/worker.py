"""A worker in virtual time: the protocol core and the books as they are, and what agent and training do around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.measure import Report
from host.aggregate import held
from host.alarm import Alarm
from host.encoder import Finished
from host.history import Result
from host.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Send
from host.pacing import Pacer, bucket_for
from host.protocol import Protocol
from host.stragglers import Blocking
from host.train import Step, Work
from host.wire import HEADER_BYTES, PARTS, Header, Kind
from run.config import Config
from run.late import GIVE_UPS, RULES, Treatment
from sim.clock import Clock, Handle
from sim.costs import Costs
from sim.machine import Machine
from sim.network import Link
from sim.pupil import Pupil, nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all workers have in common."""

    config: Config
    clock: Clock
    machine: Machine
    costs: Costs
    report: Callable[[int, Report], None]
    ask_peers: Callable[[int], None]
    """Have the results of this rank's iteration brought from the others."""
    finished: Callable[[int, str], None]


class Worker:
    """One rank: computes, contributes, waits, applies."""

    def __init__(self, around: Surroundings, rank: int, link: Link, pupil: Pupil) -> None:
        self._around, self._rank, self._link, self._pupil = around, rank, link, pupil
        job = around.config.job
        self.protocol = Protocol(
            job=job.id,
            rank=rank,
            shape=pupil.shape,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
        )
        bucket = bucket_for(around.config.pace_mbps, pupil.shape.words_most)
        self._pacer = Pacer[Send](bucket, around.clock, self._leave_all) if bucket else None
        self._blocking = Blocking(around.config, rank)
        self.treat(around.config.policy.treatment)
        self._delivered: dict[int, Result] = {}
        self._complete: list[Result] | None = None  # the current iteration's, when it is over
        self._done: list[Finished] = []  # what is to be applied
        self._iteration, self._batch = 0, 0  # what is computed
        self._current = 0  # of which it has the parameters; the protocol may be further
        self._beyond = 0
        self._then: Callable[[], None] | None = None  # to do once the protocol is beyond that, and not left behind
        self._computing: Handle | None = None
        self._alarm = Alarm(self._time_out)
        self._started_s = 0.0  # parameters ready
        self._ready_s = 0.0  # the gradient was
        self._blocked_s = 0.0  # in the current iteration
        self._cut_off = 0  # gradients in a row that were not in time
        self._step: Step | None = None  # what it has done in the iteration that it computes
        self._work: Work  # the gradient that it has
        self._own: Sequence[Result] = ()  # of the iteration that it computed last

    def treat(self, treatment: Treatment) -> None:
        """Treat late gradients so from now on."""
        self._rule = RULES[treatment.rule]
        self._pupil.treat(treatment)

    # -- its course

    def start(self) -> None:
        """The first iteration, with parameters that all have alike."""
        self._begin(1)
        self._compute()

    def _compute(self) -> None:
        """Parameters are ready."""
        self._step, self._started_s = None, self._around.clock.time()
        self._iteration, self._batch = self._current, 0
        self._go()

    def _go(self) -> None:
        """A gradient with these parameters."""
        now_s, compute_s = self._around.clock.time(), self._blocking.compute_s(self._iteration)
        wake_s = 2 * self._around.costs.wake_s  # from its sleep, and of the thread that sends
        self._blocked_s = self._blocking.blocking_s(self._iteration, self._batch, now_s)
        ready_s = now_s + compute_s + self._blocked_s + wake_s
        self._computing = self._around.clock.call_at(ready_s, self._computed)
        self._go_on()

    def _computed(self) -> None:
        """The gradient is there."""
        self._computing = None
        self._around.machine.work(self._around.costs.encode_s, self._until, 0, self._hand_over)

    def _hand_over(self) -> None:
        """The protocol is where the others are: hear of what has ended, then contribute as the rule says."""
        iteration, batch, current = self._iteration, self._batch, self.protocol.iteration
        if self._step is None:
            work = self._work = self._pupil.compute(iteration, 0, self._blocked_s)
            self._step, self._ready_s = self._made(work, current - iteration), self._around.clock.time()
            self._cut_off = 0 if current == iteration else self._cut_off + 1
        elif batch:
            self._work = self._pupil.compute(iteration, batch, self._blocked_s)
        if self._done:
            self._hear(lambda: self._until(0, self._hand_over))
            return
        self._pupil.enter(self._work, iteration, batch, current)
        late = current > iteration
        if late and self._rule.counts:
            self._step = replace(self._step, catch_up_s=self._around.clock.time() - self._ready_s)
        if late and not self._rule.counts:
            self._pupil.encoder.enter_rest()
            if self._may_merge:
                self._contribute_waiting(counts=False)
        elif batch:
            self._contribute_waiting(counts=True)
        else:
            self._pupil.encoder.encode(current)
            for block in self.protocol.missing:
                self._contribute(block)
        self._alarm.set(self.protocol.deadline, self._around.clock)
        if late and not self._rule.counts:
            self._report_and_compute()
        elif self._rule.repeats and batch < PARTS - 1:
            self._batch += 1
            self._go()
        else:
            self._until(current, lambda: self._hear(self._report_and_compute))

    def _give_up_if_late(self) -> None:
        """Go on to the current iteration as soon as this one is over, if the rule is such."""
        if self._computing is None or not self.protocol.is_over(self._iteration) or not self._gives_up:
            return
        self._computing.cancel()
        self._computing = None
        if self._step is None:
            self._step = self._made(nothing(self._blocked_s, aborted=True))
            self._cut_off += 1
        self._until(self._iteration, lambda: self._hear(self._report_and_compute))

    @property
    def _gives_up(self) -> bool:
        """Whether what is too late is not finished; the second gradient of an iteration never is."""
        return self._rule.gives_up and (self._cut_off < GIVE_UPS or self._batch > 0)

    @property
    def _may_merge(self) -> bool:
        """Whether sums have room for what is not counted."""
        return self._rule.merges and self.protocol.k < self._around.config.job.workers

    def _made(self, work: Work, age: int = 0) -> Step:
        """What was done in this iteration."""
        first_block_s, started_s = self._around.clock.time() - self._started_s, self._started_s
        return Step(iteration=self._iteration, started=started_s, first_block_s=first_block_s, work=work, age=age)

    def _until(self, iteration: int, then: Callable[[], None]) -> None:
        """Wait until the protocol is beyond this iteration, and the results of all that is over elsewhere are here."""
        self._beyond, self._then = iteration, then
        self._advance()

    def _advance(self) -> None:
        """Go on to the iteration that is current elsewhere: when that is waited for, or something waits for it."""
        while self._then is not None or (self._rule.merges and self._pupil.encoder.waits):
            if self._then is not None and self.protocol.iteration > self._beyond and not self.protocol.over:
                then, self._then = self._then, None
                then()
                return
            if self._complete is None:
                return
            self._done.append(self._pupil.encoder.follow(self._complete))
            self._complete = None
            self._begin(self.protocol.iteration + 1)

    def _hear(self, then: Callable[[], None]) -> None:
        """What has ended goes to the training; then the worker goes on, unless that is over."""
        costs, done = self._around.costs, self._done
        assert self._step is not None
        self._step = replace(self._step, account=self._pupil.account())
        self._done, self._current = [], self.protocol.iteration
        awake_s = self._around.clock.time() + costs.wake_s
        self._around.clock.after(awake_s, self._around.machine.work, costs.apply_s * len(done), self._apply, done, then)

    def _apply(self, done: list[Finished], then: Callable[[], None]) -> None:
        """All that has finished, in order."""
        now, step, reason = self._around.clock.time(), self._step, None
        assert step is not None
        for finished in done:
            own = finished.results[0].id.iteration == step.iteration
            if own:
                self._own = finished.results
            reason = reason or self._pupil.apply(finished, step if own else None, now)
        if reason is None:
            then()
        else:
            self._tell()
            self._around.finished(self._rank, reason)

    def _report_and_compute(self) -> None:
        """The next gradient."""
        self._tell()
        self._around.machine.spend(self._around.costs.report_s)
        self._compute()

    def _tell(self) -> None:
        """The controller hears of the iteration."""
        assert self._step is not None
        assert self._step.work is not None
        step = replace(self._step, account=self._pupil.account())
        self._around.report(self._rank, self._report(step, self._step.work, self._own))

    def _report(self, step: Step, work: Work, results: Sequence[Result]) -> Report:
        """What the controller measures from."""
        direction, (gradients, contributors) = self._pupil.direction, held(results)
        return Report(
            iteration=step.iteration,
            first_block_s=step.first_block_s,
            censored=work.aborted,
            late=not all(result.has(self._rank) for result in results),
            iteration_s=self._around.clock.time() - step.started,
            gradient_norm2=work.norm2,
            agreement=work.agreement,
            aggregate_norm2=direction.norm2,
            products=direction.products,
            gradients=gradients,
            contributors=contributors,
            age=step.age,
            catch_up_s=step.catch_up_s,
            account=step.account,
        )

    # -- packets and timers

    def take(self, header: Header, values: bytes) -> None:
        """A packet has come over the link."""
        self._around.machine.work(self._around.costs.packet_s, self._packet, header, values)

    def take_results(self, results: list[Result]) -> None:
        """A peer has answered."""
        for result in results:
            self._follow(self.protocol.result_in(result, self._around.clock.time()))
        self._go_on()

    def _packet(self, header: Header, values: bytes) -> None:
        """The host has read it."""
        self._follow(self.protocol.packet_in(header, values, self._around.clock.time()))
        self._go_on()

    def _go_on(self) -> None:
        """Results may have come."""
        for block in self._pupil.encoder.narrowed(self.protocol.waiting, self.protocol.iteration):
            self._contribute(block)
        self._alarm.set(self.protocol.deadline, self._around.clock)
        self._advance()
        self._give_up_if_late()

    def _time_out(self) -> None:
        """The earliest deadline has passed."""
        self._follow(self.protocol.timer(self._around.clock.time()))
        self._alarm.set(self.protocol.deadline, self._around.clock)

    def _begin(self, iteration: int) -> None:
        """The protocol's next iteration; what has waited for a whole one is merged into it."""
        encoder, now = self._pupil.encoder, self._around.clock.time()
        self._current = self._current or iteration
        encoder.begin(iteration)
        self._follow(self.protocol.begin(iteration, now, encoder.blocks, encoder.plan.lanes))
        if self._may_merge and not self.protocol.over and encoder.waits_since(iteration - 1):
            self._contribute_waiting(counts=False)
        self._alarm.set(self.protocol.deadline, self._around.clock)

    def _contribute_waiting(self, *, counts: bool) -> None:
        """What waits, as another part of the contribution."""
        part, blocks = self._pupil.encoder.encode_part(self.protocol.iteration, self.protocol.open, counts=counts)
        for block in blocks:
            self._contribute(block, part=part, counts=counts)

    def _contribute(self, block: int, *, part: int = 0, counts: bool = True) -> None:
        """Hand a block to the protocol."""
        now, encoder = self._around.clock.time(), self._pupil.encoder
        packed, uses = encoder.packed(block, part), encoder.uses
        self._follow(self.protocol.contribute(block, packed, part=part, counts=counts, uses=uses, now=now))

    def _follow(self, instructions: list[Instruction]) -> None:
        """Do what the protocol says."""
        encoder = self._pupil.encoder
        for instruction in instructions:
            match instruction:
                case Send(header=header, values=values):
                    if header.kind == Kind.CONTRIBUTE:
                        encoder.left(header.block, values, header.part)
                    self._around.machine.work(self._around.costs.packet_s, self._send, instruction)
                case Deliver(result=result):
                    self._delivered[result.id.block] = result
                    encoder.settle([instruction], self._around.clock.time())
                case Complete():
                    self._complete = [self._delivered[block] for block in self.protocol.blocks]
                    self._delivered = {}
                case EncodeAgain(block=block, part=part, counts=counts, scale=scale, lanes=lanes):
                    encoder.again(block, self.protocol.iteration, scale, lanes, part)
                    self._contribute(block, part=part, counts=counts)
                case AskPeers():
                    self._around.ask_peers(self._rank)

    def _send(self, packet: Send) -> None:
        """The host has made it: it leaves now, or in its turn."""
        if self._pacer is None:
            self._leave(packet)
            return
        (leaves_s,) = self._pacer.send([(packet, HEADER_BYTES + len(packet.values))])
        if leaves_s is not None:
            self.protocol.leaves(packet.header, leaves_s)

    def _leave_all(self, packets: list[Send]) -> None:
        """The pacer lets these go."""
        for packet in packets:
            self._leave(packet)

    def _leave(self, packet: Send) -> None:
        """A packet goes to the link."""
        self._link.send(packet.header, packet.values)
