"""A training's part in its job: each backward pass sends gradients, and gets their means.

A session follows a model in DistributedDataParallel. DDP calls _hook() with each bucket of gradients, and _hook() calls
reduce(). DDP calls ready() before each forward pass. Without elastic() each backward pass gets one mean, in the order
of iterations.
"""

import atexit
import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kofn_common import wall_clock
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.objectives import check_objective
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import CLOSED
from kofn_host.errors import GradientError, HostError
from kofn_host.training import MAGNITUDE_MAX, Aggregate, Begun, Exchange, IterationLog, JobCoding, Metrics, Step, Update
from kofn_host.workload import ReplicaState, load_stragglers
from kofn_torch.errors import TorchError
from kofn_torch.exchange import GradientExchange
from kofn_torch.job import TorchJob
from kofn_torch.layout import ParameterLayout
from kofn_torch.left_gradients import LeftGradients
from kofn_torch.own_hook import OwnHook
from kofn_torch.peers import PeerExchange, PeerReducer
from kofn_torch.replica import ModelReplica
from kofn_torch.staging import Staging, after_backward, digests, future_on
from kofn_torch.state import ResumableSession
from kofn_torch.unreduced import UnreducedPasses
from kofn_torch.untrained import UntrainedState, broadcasts_buffers, caches

log = logging.getLogger(__name__)

BACKLOG = 64
"""The most means that may wait for a training without elastic()."""


class Session(ResumableSession):
    """The session of one worker; ddp_hook() and elastic() make it. Every wait has a limit; errors are HostErrors.

    The first error ends the session: DDP's backward pass raises a RuntimeError with the error's text, and every later
    call raises the error itself.
    """

    def __init__(self, model: DistributedDataParallel, job: TorchJob, layout: ParameterLayout | None = None) -> None:
        self.model, self._job = model, job
        self.rank, self.workers = job.rank, job.config.job.workers
        ignored = getattr(model, "parameters_to_ignore", ())
        self.layout = layout or ParameterLayout(model.module, ignored)
        device = self.layout.device
        self._staging = None if device.type == "cpu" else Staging(device, self.fail)
        self.left_gradients = LeftGradients(self.layout, self._staging)
        self._coding = JobCoding.of(job.config.job, job.config.compress, self.layout.elements, notes=True, follows=True)
        self._untrained = UntrainedState(model.module, self.layout.parameters.values(), ignored)
        begins = zlib.crc32(self._untrained.values().data, zlib.crc32(self.layout.values().data)) >> 1
        note = np.array([self.layout.digest ^ self._untrained.digest, begins, self.layout.elements])
        blocks = self._coding.layout.blocks if load_collective(job.config.job.collective).ledger else 0
        self.replica = ModelReplica(self.layout, self._untrained, blocks, self._coding.planner.first(), note)
        given = (
            [name for name, _ in model.module.named_buffers()] if broadcasts_buffers(model) else caches(model.module)
        )
        self._compared = UntrainedState(model.module, self.layout.parameters.values(), [*ignored, *given])
        """Untrained tensors that all workers must have equal after every iteration, without the buffers that DDP
        broadcasts in the next forward pass."""
        self._last = job.config.run.max_iterations
        self._blocking = load_stragglers(job.config, job.rank)
        self._error: HostError | None = None
        self._ended: Future[Exchange] | None = None
        """The exchange of the latest gradient, until ended() has returned its updates."""
        self._whole = True
        """Whether the last bucket of the latest gradient has come."""
        self._backlog = deque[Update]()
        self._begun: Begun | None = None
        self._passes = 0
        """The number of backward passes that have begun."""
        self._closed = False
        self._hooks: list[Any]
        """Hooks on the model, until close()."""

    def join(self) -> None:
        """Take part in the job: wait for all workers, or start from a peer's state."""
        if self.replica.parts is None:
            _warn_of_fixed_k(self._job.config)
        self.reducer = self._job.join(self._coding, self.replica, self.model.process_group)
        self._exchange: GradientExchange | PeerExchange
        if isinstance(self.reducer, PeerReducer):
            self._exchange = PeerExchange(self.reducer, self.layout.elements, self.workers)
        else:
            self._exchange = GradientExchange(self.reducer, self._coding, self._last)
        self._tell_note()
        self._metrics = Metrics(self._job.metrics)
        self._log = IterationLog(self._job.config, self._metrics, self._blocking, self.layout.elements)
        self._begun_s = self._ready_s = time.monotonic()
        self._started = wall_clock.now()
        self._follow_model()
        atexit.register(self.close)

    def _follow_model(self) -> None:
        """Follow the model's passes from now on."""
        self.model.register_comm_hook(self, Session._hook)
        self._unreduced = UnreducedPasses(self.model, self.layout.parameters)
        self._hooks = self._unreduced.hooks
        self.model.register_forward_pre_hook(OwnHook(lambda *_: self.ready()))
        self.model.register_forward_hook(OwnHook(lambda *_: self._unreduced.forward()))

    def __reduce__(self) -> Any:
        """Pickle as None: a copied or loaded model has no session."""
        return type(None), ()

    # -- for the user

    @property
    def iteration(self) -> int:
        """The latest iteration whose mean was applied, from 1; 0 before the first."""
        return self.replica.iteration

    @property
    def iterations(self) -> int:
        """The job's last iteration (run.max_iterations)."""
        return self._last

    def done(self) -> bool:
        """Return whether the parameters are those after the job's last iteration (run.max_iterations)."""
        return self.iteration >= self._last

    @property
    def loss(self) -> float | None:
        """The loss of the current batch, for reports; setting it is optional, and does not wait for a device."""
        return self._log.loss

    @loss.setter
    def loss(self, loss: float | torch.Tensor) -> None:
        found = loss.detach() if isinstance(loss, torch.Tensor) else loss
        if self._staging is None or not isinstance(found, torch.Tensor):
            self._log.loss = float(found)
        else:
            self._staging.send("loss", found.reshape(1), lambda host: setattr(self._log, "loss", host.item()))

    def log(self, **numbers: float) -> None:
        """Record the script's numbers, such as `session.log(top1=0.71)`. A tensor of one element counts as a number.

        The live view and the table show the latest numbers, as means over the workers; `kofn.read(run).logged` has all
        numbers, each with its `iteration`.
        """
        if self._closed:
            raise TorchError("session.log() must come before close()")
        found = {name: float(value) for name, value in numbers.items()}
        logged = {name: value if math.isfinite(value) else None for name, value in found.items()}
        self._metrics.write(iteration=self.iteration, time=wall_clock.now(), logged=logged)

    def close(self) -> None:
        """Leave the job; if the training is done, leave the job together with the other workers. Python calls close()
        when it ends."""
        if self._closed:
            return
        atexit.unregister(self.close)
        try:
            if self._error is None and self._whole and self.replica.parts is None:
                self._settle()  # the last mean, which no later call has taken
        finally:
            self._closed = True
            self._job.leave("iterations" if self.done() else "")
            self._exchange.close()
            if self._staging is not None:
                self._staging.close()
            for hook in self._hooks:
                hook.remove()
            reason, memory = "iterations" if self.done() else CLOSED, self.replica.memory + self.reducer.memory
            self._metrics.sum_up(self.reducer, reason, self.replica.results, memory)

    # -- for DDP

    @staticmethod
    def _hook(session: "Session", bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Reduce a bucket as register_comm_hook() wants it.

        An error raised here would make DDP unusable, and an error in the future would lose its type. So after an error
        DDP gets the bucket unchanged, and the error is raised at the end of the backward pass.
        """
        try:
            return session.reduce(bucket)
        except HostError as error:
            session.fail(error)
            torch.autograd.Variable._execution_engine.queue_callback(session.check)
            unreduced = future_on(session.layout.device)
            unreduced.set_result(bucket.buffer())
            return unreduced

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the means of a bucket."""
        if self._error is not None:
            raise self._error
        if self._whole:
            self._begin()
        values = bucket.buffer()
        if values.is_sparse:
            raise TorchError("gradients must be dense, got a sparse one: a switch sums whole blocks")
        self._whole = bucket.is_last()
        self._unreduced.reduced(last=self._whole)
        if self._staging is None:
            return _put(self, bucket, values)
        if self._whole:
            after_backward(self.check)
            if self.replica.parts is not None:
                after_backward(self.left_gradients.note)
        return self._staging.reduce(bucket.index(), values, partial(_put, self, bucket))

    def ready(self) -> None:
        """Prepare a forward pass: the parameters are those after the last iteration."""
        self.check()
        trains, reduced = torch.is_grad_enabled(), self.model.require_backward_grad_sync
        if trains and reduced:
            self._untrained.check_trained(freezes=self.model.find_unused_parameters)
        elif trains and self.model.static_graph and not self._passes:
            raise TorchError(
                "the first backward pass must be outside of no_sync() with static_graph=True, got it inside"
            )
        if self.replica.parts is None:
            self._settle()
        elif self.model._join_config.enable:
            raise TorchError(
                "join() must not be used, because it waits for all workers before every forward pass: end the loop by"
                " session.done()"
            )

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if self._closed:
            raise TorchError(f"the session of worker {self.rank} is closed")
        if self._error is not None:
            raise self._error

    def fail(self, error: HostError) -> None:
        """End the session with this error, unless an earlier error has ended it."""
        self._error = self._error or error
        self._exchange.fail(self._error)
        self._job.fail(self._error)

    # -- iterations

    def _begin(self) -> None:
        """Begin a gradient, whose first bucket has come."""
        self._settle()
        iteration = self.iteration + 1
        if iteration > self._last:
            raise TorchError(f"iteration must be at most {self._last} (run.max_iterations), got {iteration}")
        known = self._backlog.popleft() if self._backlog else None
        first_s, blocking_s = time.monotonic(), self._pause(iteration)
        own_end = _meets(self.model, self._passes)
        self._passes += 1
        self._begun = Begun(
            iteration=iteration,
            started=self._started,
            ready_s=self._ready_s,
            first_s=(exchange_s := time.monotonic()),
            exchange_s=exchange_s,
            blocking_s=blocking_s,
            blocked_s=time.monotonic() - first_s,
            decision=self.reducer.decision,
        )
        assert known is None or isinstance(known, Aggregate)
        self._ended = self._exchange.begin(iteration, known, own_end=own_end)

    def _pause(self, iteration: int) -> float:
        """Block as the configuration says; return the blocked time, without the time that imitates a larger model."""
        now = time.monotonic()
        blocking_s = self._blocking.blocking_s(iteration, 0, now - self._begun_s)
        floor_s = max(0.0, self._ready_s + self._blocking.compute_s(iteration) - now)
        time.sleep(floor_s + blocking_s)
        return blocking_s

    def ended(self) -> tuple[Step, Sequence[Update]]:
        """Wait for the end of this worker's last iteration; return the worker's step and the updates since the step."""
        self.check()
        if self._ended is None or self._begun is None:
            raise TorchError("backward() must come before step(), outside of no_sync(), got no gradient")
        try:
            exchange = self._ended.result()
            for update in exchange.updates:
                if isinstance(update, Aggregate):
                    self.replica.check_notes(update.notes)
        except HostError as error:
            self.fail(error)
            raise
        self._ended = None
        step = self._log.step(self.reducer, self._begun, exchange, self._exchange.gradient())
        return step, exchange.updates

    def missed(self) -> Sequence[Update]:
        """Return the iterations that the other workers have ended since this worker's last iteration; empty if this
        worker is not behind, or the training is over."""
        if self.done():
            return ()
        try:
            return self.reducer.catch_up()
        except HostError as error:
            self.fail(error)
            raise

    def applied(self, update: Aggregate, step: Step | None, after_step: Callable[[], object] | None = None) -> None:
        """Record that an iteration's mean is in the parameters, which `after_step` may change."""
        self.replica.applied(update)
        if after_step is not None:
            after_step()
        write = self._log.applied(update, step)
        if self._staging is None:
            write(*self.layout.flat_parameters(), self._compared.values())
        else:
            compared = digests([*self.layout.parameters.values(), *self._compared.tensors().values()])
            self._staging.send("digests", compared, lambda host: write(host.numpy()))
        self._ready_s, self._started = time.monotonic(), wall_clock.now()

    def jumped(self) -> None:
        """Record that this worker took over another worker's parameters."""
        self._tell_note()
        self._log.jumped()
        self._ready_s, self._started = time.monotonic(), wall_clock.now()

    def report(self, step: Step, updates: Sequence[Update]) -> None:
        assert self._begun is not None
        self._job.report(self._log.report(self._begun, step, updates))

    def _tell_note(self) -> None:
        """Tell the other workers which model this worker trains: with every gradient, or in a separate call if
        the workers sum among themselves."""
        if isinstance(self._exchange, GradientExchange):
            self._exchange.note = tuple(self.replica.note.tolist())
        else:
            self.replica.check_notes(dict(enumerate(self._exchange.notes(self.replica.note).tolist())))

    def _settle(self) -> None:
        """Without elastic(), record the last iteration, whose mean the optimizer has applied."""
        if self._ended is None:
            return
        step, updates = self.ended()
        first, *later = updates
        if any(isinstance(update, ReplicaState) for update in updates) or len(self._backlog) + len(later) > BACKLOG:
            error = TorchError(
                f"worker {self.rank} must be at most {BACKLOG} iterations behind the others: kofn_torch.elastic()"
                " applies missed iterations, ddp_hook() does not"
            )
            self.fail(error)
            raise error
        assert isinstance(first, Aggregate)
        self.applied(first, step)
        self._backlog.extend(later)
        self.report(step, updates)

    def _end_iteration(self) -> None:
        self.check()
        if self.replica.parts is None:
            self._settle()
        elif self._ended is not None:
            raise TorchError("state_dict() must come after step(), got a gradient that no step has taken")


def _warn_of_fixed_k(config: Config) -> None:
    """Warn that a worker may fall too far behind with a fixed k < n. Whether it does depends on the workers' speeds."""
    objective, workers = config.policy.objective, config.job.workers
    fixed = check_objective(objective, workers, "policy.objective")
    if fixed is not None and fixed.k < workers and config.run.max_iterations > BACKLOG:
        log.warning(
            "the objective %s closes each sum with %d of %d workers: without kofn_torch.elastic() a worker that is more"
            " than %d iterations behind ends with an error",
            objective,
            fixed.k,
            workers,
            BACKLOG,
        )


def _put(session: Session, bucket: dist.GradBucket, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Put a bucket's values, in main memory; return a future of their means."""
    try:
        if session._staging is not None and bucket.index() == 0 and session._begun is not None:
            session._begun = replace(session._begun, first_s=time.monotonic())
        return session._exchange.reduce(session.layout.ranges(bucket.parameters()), values)
    except GradientError as error:
        error.add_note(_out_of_range(session.layout, bucket))
        raise


def _meets(model: Any, passes: int) -> bool:
    """Return whether DDP makes all workers wait for each other after the pass that begins now. `passes` passes have
    begun before it.

    DDP does so once, when it rebuilds its buckets: after the first pass or, with a static graph, after the second pass.
    """
    if not isinstance(model, DistributedDataParallel) or model.process_group.size() == 1:
        return False
    always = broadcasts_buffers(model) or model._join_config.enable
    return always or passes <= int(model.static_graph)


def _out_of_range(layout: ParameterLayout, bucket: dist.GradBucket) -> str:
    """Return a sentence that names the parameters of a refused bucket, and a remedy."""
    parts = zip(bucket.parameters(), bucket.gradients(), strict=True)
    bad = {id(parameter) for parameter, gradient in parts if not (gradient.abs() <= MAGNITUDE_MAX).all()}
    names = [name for name, parameter in layout.parameters.items() if id(parameter) in bad]
    return f"parameter {', '.join(names)}: a smaller loss, GradScaler(init_scale=...) or clipping keeps it in range"
