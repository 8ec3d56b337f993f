"""Data-parallel training of one worker: gradient, all-reduce, step; until the target is reached.

A Reducer hides the collective: a switch, a server, or a sum among the workers.  Every replica applies the same
aggregates in the same order, so all workers see the same metric in the same iteration and stop together without a
message.

The rule for late gradients (config.late_rules) decides two things: whether a worker stops computing when the other
workers have ended its iteration, and whether a worker that has contributed computes further gradients with the same
parameters until the iteration ends.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kofn_common import wall_clock
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.results.account import Account
from kofn_common.results.worker_metrics import TIME_PARTS, bitmap_of
from kofn_common.rpc import kofn_pb2
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.arrays import Floats, Integers
from kofn_host.checkpoint.saver import Saver
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.alignment import Alignment, Direction
from kofn_host.compression.job_coding import JobCoding
from kofn_host.engine.link_pacing import LinkReport
from kofn_host.kernels.sample import norm2
from kofn_host.stopwatch import UNMEASURED
from kofn_host.training.attempts import Attempts
from kofn_host.training.divergence import DIVERGED, Divergence
from kofn_host.training.iteration_clock import IterationClock
from kofn_host.training.metrics import Metrics
from kofn_host.training.reducer import Reducer
from kofn_host.workload.evaluation import Evaluation
from kofn_host.workload.replica import Replica, ReplicaState
from kofn_host.workload.straggler_source import load_stragglers
from kofn_host.workload.workload import load_workload, metric_of

OWN = (
    *("started", "loss", "first_block_s", "iteration_s", "blocking_s", "gradient_norm2", "age", "account"),
    *("schedule", "timeline"),
)
"""Fields of a metrics line that are null where the worker did not compute the iteration."""

UNTIMED = dict.fromkeys(TIME_PARTS)
"""The parts of time as null values.  A metrics line has them if its iteration was applied together with the iteration
before it, and in runs in virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A computed gradient and its times; `gradient` is None if it is not contributed, for instance if `aborted`."""

    loss: float | None
    gradient: Floats | None
    norm2: float
    agreement: float  # agreement with the latest aggregate when the gradient was begun (compression.alignment)
    blocking_s: float  # the injected blocking
    blocked_s: float  # the measured blocking: time beyond model.compute_ms and beyond the gradient's processor time
    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration of this worker; times in seconds, `started` since the epoch."""

    iteration: int
    started: float
    first_block_s: float  # until the first encoded block, or until the worker gave up
    work: Work | None  # None: the gradient was computed before a restart
    age: int = 0  # age of the gradient when it was contributed, in iterations
    catch_up_s: float = 0.0  # from the end of a late gradient's computation to its contribution
    account: Account | None = None  # account of all the worker's gradients so far
    link: LinkReport | None = None  # None: no new measurement
    schedule: str | None = None  # the schedule of this iteration, if any
    timeline: Sequence[tuple[str, str, float, float]] | None = None  # results.worker_metrics.TimelineEntry, if any

    @property
    def contributed(self) -> bool:
        """Whether a gradient of this iteration is in the ledger."""
        return self.work is None or self.work.gradient is not None

    def fields(self, now: float) -> dict[str, Any]:
        """Return the step's fields of a metrics line."""
        if self.work is None or not self.contributed:
            return {}
        return {
            "started": self.started,
            "loss": self.work.loss,
            "first_block_s": self.first_block_s,
            "iteration_s": now - self.started,
            "blocking_s": self.work.blocking_s,
            "gradient_norm2": self.work.norm2,
            "age": self.age,
            "account": self.account and shallow(self.account),
            "schedule": self.schedule,
            "timeline": self.timeline,
        }


class Training:
    """One worker's model, data and stragglers."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config = config
        self._blocking = load_stragglers(config, rank)
        self._begun_s = time.monotonic()
        self._clock = IterationClock()
        self._attempts = Attempts()
        self._workload = workload = load_workload(config, rank)
        self.parameters = len(workload.parameters)
        self._divergence = Divergence(workload.parameters)
        self._alignment = Alignment(self.parameters)
        self._direction: Direction | None = None  # direction of the last computed iteration's aggregate
        self.coding = self._code(config)
        blocks = self.coding.layout.blocks if load_collective(config.job.collective).ledger else 0
        self.replica = Replica(workload, config, blocks, self.coding.planner.first(), self._alike())
        self._metric = metric_of(config)
        self.saver: Saver | None = None
        """The writer of checkpoints; None: no checkpoints are written."""

    def _code(self, config: Config) -> JobCoding:
        """Return the coding of packets."""
        return JobCoding.of(config.job, config.compress, self.parameters, follows=True)

    def _alike(self) -> dict[str, Integers]:
        """Return further arrays that are equal in all replicas."""
        return {}

    def _mean(self, aggregate: Aggregate) -> Floats:
        """Return the aggregate's mean in the shape of the parameters."""
        return aggregate.mean

    def run(self, reducer: Reducer, metrics: Metrics, report: Callable[[kofn_pb2.Report], object]) -> str:
        """Train to the end; return the reason of the end.

        The reason is "target" (the metric's target is reached), "iterations" (the last iteration has ended) or
        "diverged".
        """
        self._begun_s, self._clock = time.monotonic(), IterationClock()
        caught_up = reducer.catch_up()
        self._clock.exchanged(UNMEASURED)
        reason = self._apply_all(caught_up, None, metrics) or self._over(reducer.iteration - 1)
        while reason is None:
            decision, ready = reducer.decision, time.monotonic()  # the decision known at the iteration's begin
            self._direction = None
            step, updates, reason = self._iterate(reducer, metrics, ready)
            if step.work is not None:
                spent_s = time.monotonic() - ready
                done = report_of_updates(step, step.work, updates, self._direction, spent_s, decision)
                if (metric := self.replica.evaluator.value(updates[-1].iteration)) is not None:
                    done.metric = metric
                report(done)
        return reason

    def _iterate(self, reducer: Reducer, metrics: Metrics, ready: float) -> tuple[Step, list[Update], str | None]:
        """Compute and contribute until an iteration has ended; return the step, the updates and the reason to stop.

        Missed iterations are applied before a late gradient is contributed; a missed iteration may end the training.
        """
        iteration, started, attempts = reducer.iteration, wall_clock.now(), self._attempts
        attempts.begin()
        work = first = None if reducer.entered else self._work(reducer, iteration, ready)
        computed = time.monotonic()
        step: Step | None = None
        updates: list[Update] = []
        reason, catch_up_s = None, 0.0

        def hear(exchange: Exchange) -> bool:
            """Apply ended iterations; return whether the training continues."""
            nonlocal step, reason
            self._clock.exchanged(exchange.times)
            step = step or Step(
                iteration=iteration,
                started=started,
                first_block_s=(exchange.handed_s or computed) - ready,
                work=first,
                age=exchange.age,
                account=reducer.account(),
            )
            reason = self._apply_all(exchange.ended, None if updates else step, metrics)
            updates.extend(exchange.ended)
            return reason is None

        while True:
            exchange = self._give(reducer, iteration, work, hear)
            if attempts.batch == 0:
                attempts.tried(in_time=not (exchange.late or (work is not None and work.aborted)))
                if exchange.late and exchange.handed_s is not None:
                    catch_up_s = exchange.handed_s - computed
            if exchange.handed_s is None or not hear(exchange) or updates:
                break
            attempts.again()
            work = self._work(reducer, iteration, time.monotonic())
        assert step is not None
        step = replace(
            step,
            age=exchange.age,
            catch_up_s=catch_up_s,
            account=reducer.account(),
            link=reducer.link.report(),
        )
        return step, updates, reason

    def _give(
        self, reducer: Reducer, iteration: int, work: Work | None, missed: Callable[[Exchange], bool]
    ) -> Exchange:
        """Contribute a finished gradient; `work` is None for a gradient from before a restart."""
        self._clock.computed()
        if work is not None and work.gradient is None:
            return Exchange(handed_s=time.monotonic(), ended=reducer.skip())
        stays = self._attempts.repeats(reducer.rule)
        gradient = None if work is None else work.gradient
        return reducer.all_reduce(Contribution(gradient, iteration, self._attempts.batch, stays=stays), missed)

    def _apply_all(self, updates: Sequence[Update], step: Step | None, metrics: Metrics) -> str | None:
        """Apply updates in order up to the training's end, write their metrics, and return the reason to stop."""
        lines: list[dict[str, Any]] = []
        reason = None
        for update in updates:
            begun = self.replica.iteration + 1
            if isinstance(update, ReplicaState):
                self.replica.restore(update)
                self._alignment.clear()
                reason = self._over(update.iteration)
            else:
                own = step is not None and step.iteration == update.iteration
                line, reason = self._apply(update, step if own else None)
                lines.append(line)
            if self.saver is not None:
                self.saver.applied(begun, update.iteration, self.replica)
            if reason is not None:
                break
        self._clock.stepped()
        if lines:
            lines[0] |= self._clock.take()  # the time of all updates
        for line in lines:
            metrics.write(**line)
        if self.saver is not None:
            self.saver.write()
        return reason

    def _over(self, iteration: int) -> str | None:
        """Return the reason to stop after this iteration, if there is one."""
        return self._reason(iteration, self.replica.evaluator.value(iteration))

    def _reason(self, iteration: int, value: float | None) -> str | None:
        """Return the reason to stop, given the metric's value; None: continue."""
        if self._metric is not None and self._divergence.seen():
            return DIVERGED
        if self._metric is not None and self._metric.reached(value):
            return "target"
        return "iterations" if iteration >= self._config.run.max_iterations else None

    def _work(self, reducer: Reducer, iteration: int, ready: float) -> Work:
        """Compute a gradient, then pause for a larger model's computation and for blocking."""
        spent_s, batch = time.thread_time(), self._attempts.batch
        loss, gradient = self._workload.gradient(iteration, batch)
        spent_s = time.thread_time() - spent_s
        agreement = self._alignment.agreement(gradient)
        blocking_s = self._blocking.blocking_s(iteration, batch, ready - self._begun_s)
        floor_s = max(0.0, ready + self._blocking.compute_s(iteration) - time.monotonic())
        aborted = self._pause(reducer, floor_s + blocking_s)
        blocked_s = max(0.0, time.monotonic() - ready - max(self._config.model.compute_ms / 1000, spent_s))
        return Work(
            loss=loss,
            gradient=None if aborted else gradient,
            norm2=0.0 if aborted else norm2(gradient),
            agreement=0.0 if aborted else agreement,
            blocking_s=blocking_s,
            blocked_s=max(blocked_s, blocking_s) if aborted else blocked_s,
            aborted=aborted,
        )

    def _pause(self, reducer: Reducer, seconds: float) -> bool:
        """Sleep; return whether the sleep was aborted because the iteration is over."""
        if self._attempts.gives_up(reducer.rule):
            return reducer.over.wait(seconds)
        time.sleep(seconds)
        return False

    def _apply(self, aggregate: Aggregate, step: Step | None) -> tuple[dict[str, Any], str | None]:
        """Update the parameters; return the iteration's metrics and the reason to stop, if any."""
        mean = self._mean(aggregate)
        evaluation = self.replica.apply(aggregate.iteration, mean, aggregate.checksums, aggregate.plan)
        direction = self._alignment.direction(mean)
        if step:
            self._direction = direction
        line = iteration_line(aggregate, step, wall_clock.now(), direction, evaluation) | {
            "injected_mean_s": self._blocking.mean_s(aggregate.iteration)
        }
        return line, self._reason(aggregate.iteration, evaluation.accuracy)


def iteration_line(
    aggregate: Aggregate, step: Step | None, now: float, direction: Direction, evaluation: Evaluation
) -> dict[str, Any]:
    """Return an iteration's metrics (results.worker_metrics.Iteration); `step` is None if the worker took no part."""
    own = step.fields(now) if step else {}
    return {
        "iteration": aggregate.iteration,
        "time": now,
        "computed": bool(own),
        "aggregate_norm2": direction.norm2,
        "k": aggregate.k,
        "count": aggregate.count,
        "members": bitmap_of(aggregate.members),
        "late": aggregate.late and step is not None,
        "blocked_s": step.work.blocked_s if step and step.work else None,
        **shallow(evaluation),
        **(dict.fromkeys(OWN) | own),
        **UNTIMED,
        **(shallow(aggregate.encoding) if aggregate.encoding else {}),
    }


def shallow(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields.

    Unlike dataclasses.asdict() it does not convert fields of fields, and so is faster.
    """
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def report_of_updates(
    step: Step,
    work: Work,
    updates: list[Update],
    direction: Direction | None,
    iteration_s: float,
    decision: int,
) -> kofn_pb2.Report:
    """Return the report to the controller.

    `updates` begin with the update of this iteration, or with a replica that replaces that update.
    """
    first = None if isinstance(updates[0], ReplicaState) else updates[0]
    least, most = first.ks if first else (0, 0)
    return report_of(
        step,
        work,
        direction,
        late=first is None or first.late,
        held=(first.gradients, first.contributors) if first else (0.0, 0.0),
        iteration_s=iteration_s,
        iterations_behind=len(updates) - 1,
        decision=decision,
        k_least=least,
        k_most=most,
    )


def report_of(
    step: Step, work: Work, direction: Direction | None, *, late: bool, held: tuple[float, float], **more: float
) -> kofn_pb2.Report:
    """Return the report of one iteration (Report in common/kofn_common/rpc/kofn.proto); `more`: its other fields.

    `held`: gradients and contributors in the iteration's sums, as means over the blocks.  If the worker gave up,
    first_block_s is the time until it gave up.
    """
    gradients, contributors = held
    return kofn_pb2.Report(
        iteration=step.iteration,
        first_block_s=step.first_block_s,
        censored=work.aborted,
        loss=work.loss,
        late=late,
        gradient_norm2=work.norm2,
        gradient_agreement=work.agreement,
        aggregate_norm2=direction.norm2 if direction else 0.0,
        aggregate_products=direction.products if direction else (),
        gradients=gradients,
        contributors=contributors,
        age=step.age,
        catch_up_s=step.catch_up_s,
        **(step.link._asdict() if step.link else {}),
        **(shallow(step.account) if step.account else {}),
        **more,  # type: ignore[arg-type]  # numbers by field names
    )
