"""Data-parallel training of one worker: gradient, all-reduce, step; until the target is reached.

Who reduces is a Reducer's to know: the switch, a server, or the workers among themselves.  Every replica applies the
same aggregates in the same order, so all of them see the same value of the metric at the same iteration and stop
together, without a word to each other.

The rule for late gradients (config.late_rules) says whether a worker stops computing when its iteration has ended
elsewhere, and whether one that has contributed computes another gradient with the same parameters until then.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kofn.config.schema import Config
from kofn.host.agent.exchange import Contribution, Exchange, Update
from kofn.host.arrays import Floats, Integers
from kofn.host.collectives.job_collective import load_collective
from kofn.host.compression.aggregate import Aggregate
from kofn.host.compression.alignment import Alignment, Direction
from kofn.host.compression.job_coding import JobCoding
from kofn.host.kernels.sample import norm2
from kofn.host.stopwatch import Times
from kofn.host.training.attempts import Attempts
from kofn.host.training.divergence import DIVERGED, Divergence
from kofn.host.training.metrics import Metrics
from kofn.host.training.reducer import Reducer
from kofn.host.workload.evaluation import Evaluation
from kofn.host.workload.replica import Replica, ReplicaState
from kofn.host.workload.straggler_source import load_stragglers
from kofn.host.workload.workload import load_workload, metric_of
from kofn.results.account import Account
from kofn.results.worker_metrics import TIME_PARTS
from kofn.rpc import kofn_pb2

OWN = (
    *("started", "loss", "first_block_s", "iteration_s", "blocking_s", "gradient_norm2", "age", "account"),
    *("schedule", "timeline", *TIME_PARTS),
)
"""Fields of a metrics line that only a worker has that computed the iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A gradient and what it took; `gradient` is None where it is not contributed, as when it was `aborted`."""

    loss: float | None
    gradient: Floats | None
    norm2: float
    agreement: float  # with the aggregate that was applied before it was begun (compression.alignment)
    blocking_s: float  # as it was drawn
    blocked_s: float  # as it was measured: beyond model.compute_ms, and beyond the gradient's processor time
    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What this worker did in one iteration; times in seconds, `started` since the epoch."""

    iteration: int
    started: float
    first_block_s: float  # until it gave up, where it did
    work: Work | None  # None: the gradient was computed before a restart
    age: int = 0  # of the gradient, in iterations, when it was contributed
    catch_up_s: float = 0.0  # from its end until it was contributed, where it was late: what had ended was applied
    account: Account | None = None  # of all of the worker's gradients up to then
    link_wait_s: float | None = None  # how long a gradient's last packet waits in the link; None: nothing new is known
    spent: "Spent | None" = None  # None: in virtual time
    schedule: str | None = None  # in force, where there is one
    timeline: Sequence[tuple[str, str, float, float]] | None = None  # results.worker_metrics.TimelineEntry, likewise

    @property
    def contributed(self) -> bool:
        """Whether a gradient of this iteration is in the ledger."""
        return self.work is None or self.work.gradient is not None

    def fields(self, now: float) -> dict[str, Any]:
        """Its part of a metrics line."""
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
            **(self.spent.fields() if self.spent else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where an iteration's time has gone up to its step, which began at `reduced_s` (time.monotonic).

    compute_s: since the end of the step before, so what is written down of an iteration is in the next one's.
    """

    compute_s: float
    times: Times
    reduced_s: float

    def fields(self) -> dict[str, float]:
        """Its part of a metrics line."""
        return {"compute_s": self.compute_s, **{f"{part}_s": spent for part, spent in shallow(self.times).items()}}


class Training:
    """One worker's model, data and stragglers."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config = config
        self._blocking = load_stragglers(config, rank)
        self._begun_s = self._since_s = time.monotonic()  # of the training; the end of the latest step
        self._attempts = Attempts()
        self._workload = workload = load_workload(config, rank)
        self.parameters = len(workload.parameters)
        self._divergence = Divergence(workload.parameters)
        self._alignment = Alignment(self.parameters)
        self._direction: Direction | None = None  # of the aggregate of the iteration that was computed last
        self.coding = self._code(config)
        blocks = self.coding.layout.blocks if load_collective(config.job.collective).ledger else 0
        self.replica = Replica(workload, config, blocks, self.coding.planner.first(), self._alike())
        self._metric = metric_of(config)

    def _code(self, config: Config) -> JobCoding:
        """How what goes over the wire is coded."""
        return JobCoding.of(config.job, config.compress, self.parameters, follows=True)

    def _alike(self) -> dict[str, Integers]:
        """What else is in a replica."""
        return {}

    def _mean(self, aggregate: Aggregate) -> Floats:
        """Shape of the parameters."""
        return aggregate.mean

    def run(self, reducer: Reducer, metrics: Metrics, report: Callable[[kofn_pb2.Report], object]) -> str:
        """Train to the metric's target ("target"), the last iteration ("iterations"), or till it has "diverged"."""
        self._begun_s = self._since_s = time.monotonic()
        reason = self._over(reducer.iteration - 1) or self._follow(reducer.catch_up(), None, metrics)
        while reason is None:
            decision, ready = reducer.decision, time.monotonic()  # heard before this iteration began
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
        """Compute and contribute until an iteration has ended: what was done, what has ended, and why to stop, if so.

        Before a late gradient is contributed, the missed iterations are applied; one of them may end the training.
        """
        iteration, started, since, attempts = reducer.iteration, time.time(), self._since_s, self._attempts
        attempts.begin()
        work = first = None if reducer.entered else self._work(reducer, iteration, ready)
        computed = time.monotonic()
        step: Step | None = None
        updates: list[Update] = []
        reason, catch_up_s = None, 0.0

        def hear(exchange: Exchange) -> bool:
            """Apply what has ended; return whether the training goes on."""
            nonlocal step, reason
            step = step or Step(
                iteration=iteration,
                started=started,
                first_block_s=(exchange.handed_s or computed) - ready,
                work=first,
                age=exchange.age,
                account=reducer.account(),
                spent=Spent(compute_s=computed - since, times=exchange.times, reduced_s=time.monotonic()),
            )
            reason = self._follow(exchange.ended, None if updates else step, metrics)
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
            link_wait_s=reducer.link_wait_s(),
        )
        return step, updates, reason

    def _give(
        self, reducer: Reducer, iteration: int, work: Work | None, missed: Callable[[Exchange], bool]
    ) -> Exchange:
        """Contribute a gradient that was finished, None for one from before a restart."""
        if work is not None and work.gradient is None:
            return Exchange(handed_s=time.monotonic(), ended=reducer.skip())
        stays = self._attempts.repeats(reducer.rule)
        gradient = None if work is None else work.gradient
        return reducer.all_reduce(Contribution(gradient, iteration, self._attempts.batch, stays=stays), missed)

    def _follow(self, updates: Sequence[Update], step: Step | None, metrics: Metrics) -> str | None:
        """Apply what has finished, in order, up to the end of the training, and write it down."""
        lines: list[dict[str, Any]] = []
        reason = None
        for update in updates:
            if isinstance(update, ReplicaState):
                self.replica.restore(update)
                self._alignment.clear()
                reason = self._over(update.iteration)
            else:
                own = step is not None and step.iteration == update.iteration
                line, reason = self._apply(update, step if own else None)
                lines.append(line)
            if reason is not None:
                break
        self._since_s = time.monotonic()
        for line in lines:
            if step is not None and step.spent is not None and line["computed"]:
                line["step_s"] = self._since_s - step.spent.reduced_s  # of all that has finished
            metrics.write(**line)
        return reason

    def _over(self, iteration: int) -> str | None:
        """Why the training ends with the parameters after this iteration, if it does."""
        return self._reason(iteration, self.replica.evaluator.value(iteration))

    def _reason(self, iteration: int, value: float | None) -> str | None:
        """The goal that is reached, or that none can be any more."""
        if self._metric is not None and self._divergence.seen():
            return DIVERGED
        if self._metric is not None and self._metric.reached(value):
            return "target"
        return "iterations" if iteration >= self._config.run.max_iterations else None

    def _work(self, reducer: Reducer, iteration: int, ready: float) -> Work:
        """Forward and backward pass, and the pause that stands for a larger model and for blocking."""
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
        """Sleep; return whether it was cut short because the iteration is over."""
        if self._attempts.gives_up(reducer.rule):
            return reducer.over.wait(seconds)
        time.sleep(seconds)
        return False

    def _apply(self, aggregate: Aggregate, step: Step | None) -> tuple[dict[str, Any], str | None]:
        """Update the parameters; what is to be written down of the iteration, and why to stop if it is time to."""
        mean = self._mean(aggregate)
        evaluation = self.replica.apply(aggregate.iteration, mean, aggregate.checksums, aggregate.plan)
        direction = self._alignment.direction(mean)
        if step:
            self._direction = direction
        line = iteration_line(aggregate, step, time.time(), direction, evaluation) | {
            "injected_mean_s": self._blocking.mean_s(aggregate.iteration)
        }
        return line, self._reason(aggregate.iteration, evaluation.accuracy)


def iteration_line(
    aggregate: Aggregate, step: Step | None, now: float, direction: Direction, evaluation: Evaluation
) -> dict[str, Any]:
    """What a worker writes down of an iteration (results.worker_metrics.Iteration); without `step` it had no part in
    it."""
    own = step.fields(now) if step else {}
    return {
        "iteration": aggregate.iteration,
        "time": now,
        "computed": bool(own),
        "aggregate_norm2": direction.norm2,
        "k": aggregate.k,
        "count": aggregate.count,
        "members": aggregate.members,
        "late": aggregate.late,
        "blocked_s": step.work.blocked_s if step and step.work else None,
        **shallow(evaluation),
        **(dict.fromkeys(OWN) | own),
        **(shallow(aggregate.encoding) if aggregate.encoding else {}),
    }


def shallow(record: Any) -> dict[str, Any]:
    """A dataclass's fields, as dataclasses.asdict has them where none holds another: that looks into each of them."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def report_of_updates(
    step: Step,
    work: Work,
    updates: list[Update],
    direction: Direction | None,
    iteration_s: float,
    decision: int,
) -> kofn_pb2.Report:
    """What the controller measures from; `updates`: from the one of this iteration on, or a replica in its place."""
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
    """One iteration as the controller hears of it (Report in kofn/rpc/kofn.proto); `more`: further fields of it.

    `held`: gradients and contributors in the iteration's sums, means over its blocks.  A worker that gave up says for
    how long it had tried.
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
        link_wait_s=step.link_wait_s,
        **(shallow(step.account) if step.account else {}),
        **more,  # type: ignore[arg-type]  # numbers, by the names of fields
    )
