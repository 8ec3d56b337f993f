"""A worker in virtual time: the protocol core and the books as they are, and what agent and training do around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.measure import Report
from host.aggregate import held
from host.alarm import Alarm
from host.encoder import Finished
from host.history import Result
from host.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Packed, Send
from host.pacing import Pacer, bucket_for
from host.protocol import Protocol
from host.stragglers import Blocking
from host.train import Step, Work
from host.wire import HEADER_BYTES, Header, Kind
from run.config import Config
from sim.clock import Clock, Handle
from sim.costs import Costs
from sim.machine import Machine
from sim.network import Link
from sim.pupil import Pupil


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
        self._delivered: dict[int, Result] = {}
        self._complete: list[Result] | None = None  # the current iteration's, when it is over
        self._done: list[Finished] = []  # what is to be applied
        self._waiting = False  # for the end of the iteration: the gradient is handed over, or given up
        self._computing: Handle | None = None
        self._alarm = Alarm(self._time_out)
        self._started_s = 0.0  # parameters ready
        self._blocked_s = 0.0  # in the current iteration
        self._step: Step | None = None  # what it has done in the current iteration

    # -- its course

    def start(self) -> None:
        """The first iteration, with parameters that all have alike."""
        self._begin(1)
        self._compute()

    def _compute(self) -> None:
        """Parameters are ready."""
        self._step, self._started_s = None, self._around.clock.time()
        compute_s = self._around.config.model.compute_ms / 1000
        wake_s = 2 * self._around.costs.wake_s  # from its sleep, and of the thread that sends
        self._blocked_s = self._blocking.blocking_s(self.protocol.iteration)
        ready_s = self._started_s + compute_s + self._blocked_s + wake_s
        self._computing = self._around.clock.call_at(ready_s, self._computed)
        self._give_up_if_late()

    def _computed(self) -> None:
        """The gradient is there."""
        self._computing = None
        self._around.machine.work(self._around.costs.encode_s, self._hand_over)

    def _hand_over(self) -> None:
        """It is in the books and encoded: contribute it, or learn that it is too late."""
        iteration = self.protocol.iteration
        work = self._pupil.compute(iteration, self._blocked_s)
        self._pupil.enter(work, iteration)
        self._step = self._made(work)
        self._waiting = True
        for block in self.protocol.missing:
            self._contribute(block, self._pupil.encoder.packed(block))
        self._alarm.set(self.protocol.deadline, self._around.clock)
        self._advance()

    def _give_up_if_late(self) -> None:
        """With policy.late = "abort": go on to the current iteration as soon as this one is over."""
        if self._computing is None or self._around.config.policy.late != "abort" or not self.protocol.over:
            return
        self._computing.cancel()
        self._computing = None
        self._step = self._made(Work(loss=0.0, gradient=None, norm2=0.0, blocking_s=self._blocked_s, aborted=True))
        self._waiting = True
        self._advance()

    def _made(self, work: Work) -> Step:
        """What was done in this iteration."""
        first_block_s = self._around.clock.time() - self._started_s
        return Step(iteration=self.protocol.iteration, started=self._started_s, first_block_s=first_block_s, work=work)

    def _advance(self) -> None:
        """Go on to the iteration that is current elsewhere, when the results of all before it are here."""
        while self._waiting and self._complete is not None:
            self._done.append(self._pupil.encoder.follow(self._complete))
            self._complete = None
            self._begin(self.protocol.iteration + 1)
            if not self.protocol.left_behind:
                self._waiting = False
                costs = self._around.costs
                awake_s = self._around.clock.time() + costs.wake_s
                self._around.clock.after(
                    awake_s, self._around.machine.work, costs.apply_s * len(self._done), self._apply
                )

    def _apply(self) -> None:
        """All that has finished, in order; then the next gradient, or the end."""
        done, self._done = self._done, []
        now, step, reason = self._around.clock.time(), self._step, None
        assert step is not None
        assert step.work is not None
        for finished in done:
            reason = reason or self._pupil.apply(finished, step if finished is done[0] else None, now)
        self._around.report(self._rank, self._report(step, step.work, done[0].results))
        if reason is None:
            self._around.machine.spend(self._around.costs.report_s)
            self._compute()
        else:
            self._around.finished(self._rank, reason)

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
            aggregate_norm2=direction.norm2,
            products=direction.products,
            gradients=gradients,
            contributors=contributors,
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
            self._contribute(block, self._pupil.encoder.packed(block))
        self._alarm.set(self.protocol.deadline, self._around.clock)
        self._advance()
        self._give_up_if_late()

    def _time_out(self) -> None:
        """The earliest deadline has passed."""
        self._follow(self.protocol.timer(self._around.clock.time()))
        self._alarm.set(self.protocol.deadline, self._around.clock)

    def _begin(self, iteration: int) -> None:
        """The next iteration, as far as the protocol is concerned."""
        encoder, now = self._pupil.encoder, self._around.clock.time()
        encoder.begin()
        self._follow(self.protocol.begin(iteration, now, encoder.blocks, encoder.plan.lanes))
        self._alarm.set(self.protocol.deadline, self._around.clock)

    def _contribute(self, block: int, packed: Packed) -> None:
        """Hand a block to the protocol."""
        now, uses = self._around.clock.time(), self._pupil.encoder.uses
        self._follow(self.protocol.contribute(block, **packed._asdict(), uses=uses, now=now))

    def _follow(self, instructions: list[Instruction]) -> None:
        """Do what the protocol says."""
        encoder = self._pupil.encoder
        for instruction in instructions:
            match instruction:
                case Send(header=header, values=values):
                    if header.kind == Kind.CONTRIBUTE:
                        encoder.left(header.block, values)
                    self._around.machine.work(self._around.costs.packet_s, self._send, instruction)
                case Deliver(result=result):
                    self._delivered[result.id.block] = result
                    encoder.settle([instruction], self._around.clock.time())
                case Complete():
                    self._complete = [self._delivered[block] for block in self.protocol.blocks]
                    self._delivered = {}
                case EncodeAgain(block=block, scale=scale, lanes=lanes):
                    self._contribute(block, encoder.again(block, self.protocol.iteration, scale, lanes))
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
