"""A worker as a member of its job: it is attached to the controller, and serves its peers.

A worker that starts with the others begins with the initial parameters.  A worker that joins late, or rejoins after its
process died, takes a peer's replica and learns from peers' results which of its contributions were counted.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Protocol

import grpc

from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.security import Credentials, add_port, grpc_server
from kofn_common.running_clock import RunningClock
from kofn_host.checkpoint.saver import Saver
from kofn_host.errors import AgentError
from kofn_host.membership.controller_stream import ControllerStream
from kofn_host.membership.peer import Peers, PeerService
from kofn_host.training.reducer import Reducer
from kofn_host.workload.replica import ReplicaState

log = logging.getLogger(__name__)

STATE_TIMEOUT_S = 30.0
STATE_AGAIN_S = 0.2


class HeldReplica(Protocol):
    """The state that all workers share, such as workload.replica.Replica."""

    def start(self, iteration: int) -> None:
        """Begin with the initial parameters, which count as the parameters after this iteration."""

    def state(self) -> ReplicaState | None:
        """Return a copy of the state; None if no state is available now."""

    def restore(self, state: ReplicaState) -> None:
        """Become a copy of another replica; HostError if it does not fit."""


class Member:
    """A worker's membership: join, report, finish, leave; all on one event loop."""

    def __init__(
        self,
        reducer: Reducer,
        replica: HeldReplica,
        *,
        job: int,
        rank: int,
        address: str,
        controller: str,
        credentials: Credentials | None,
        saver: Saver | None = None,
    ) -> None:
        self._reducer, self._replica, self._job, self._rank = reducer, replica, job, rank
        self._saver, self._loop = saver, asyncio.get_running_loop()
        if saver is not None:
            saver.saved = self._saved
        self._controller = ControllerStream(
            controller, credentials, hello=self._hello, hear=self._hear, fail=self._reducer.fail
        )
        self._peers = Peers(job, rank, credentials, self._controller.say)
        self._server: grpc.aio.Server = grpc_server(credentials)
        service = PeerService(job, reducer.held, reducer.link.fresh, replica.state)
        kofn_pb2_grpc.add_PeerServicer_to_server(service, self._server)
        self._address = f"{address}:{add_port(self._server, f'{address}:0', credentials)}"
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self) -> None:
        """Serve peers, attach, and begin the job's first iteration, or the iteration after a peer's replica."""
        await self._server.start()
        welcome = await self._controller.attach()
        self._set_peers(welcome.peers)
        self._reducer.decision = welcome.decision
        self._set_late_policy(welcome)
        if welcome.checkpoint and self._saver is not None:
            self._saver.restore_ledger(welcome.checkpoint)
        if welcome.running:
            await self._join_running(welcome.generation)
        else:
            await self._join_first(welcome)
        await self._controller.say(ready=kofn_pb2.Ready(iteration=self._reducer.iteration))

    async def report(self, report: kofn_pb2.Report) -> None:
        await self._controller.say(report=report)

    async def finish(self, reason: str, timeout_s: float) -> None:
        """Report the end of training, and wait until training has ended at all workers."""
        await self._controller.finish(reason, timeout_s)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._reducer.close()
        await self._controller.close()
        await self._peers.close()
        await self._server.stop(grace=0)

    async def _join_first(self, welcome: kofn_pb2.Welcome) -> None:
        """Begin together with all workers, with the same parameters: the initial ones, or a checkpoint's parameters."""
        before, state = welcome.first_iteration - 1, None
        if before and self._saver is not None:
            state = self._saver.restore(before)
            self._replica.restore(state)
            log.info("resumed at the checkpoint of iteration %d", before)
        await self._reducer.join_first(before + 1, welcome.generation, self._peers, state)
        self._replica.start(before)

    async def _join_running(self, generation: int) -> None:
        state = await self._reducer.join_running(generation, self._peers, self._peer_state)
        self._replica.restore(state)

    async def _peer_state(self) -> ReplicaState:
        """Ask until a peer sends its replica; AgentError after STATE_TIMEOUT_S without a replica."""
        clock = RunningClock(STATE_TIMEOUT_S / 4)
        deadline = clock() + STATE_TIMEOUT_S
        while (state := await self._peers.state()) is None:
            if clock() > deadline:
                raise AgentError(
                    f"job {self._job} is running, but no other worker sent its parameters in {STATE_TIMEOUT_S:.0f} s:"
                    " a job whose workers all died cannot continue"
                )
            await asyncio.sleep(STATE_AGAIN_S)
        return state

    def _hello(self) -> kofn_pb2.Hello:
        """Return this worker's identity, address and progress; a new process adds its latest checkpoint."""
        new = not self._reducer.iteration
        checkpoint = self._saver.latest() if self._saver is not None and new else None
        return kofn_pb2.Hello(
            job=self._job,
            rank=self._rank,
            peer_address=self._address,
            iteration=self._reducer.iteration,
            generation=self._reducer.generation,
            checkpoint=checkpoint.iteration if checkpoint else 0,
            follows=self._reducer.link.follows,
            control=kofn_pb2.ControlState.FromString(checkpoint.manifest.control) if checkpoint else None,
        )

    def _set_peers(self, peers: Iterable[kofn_pb2.PeerAddress]) -> None:
        addresses = {peer.rank: peer.address for peer in peers}
        self._peers.update(addresses)
        if self._saver is not None:
            self._saver.leads = self._rank == min(addresses, default=self._rank)

    def _saved(self, iteration: int, files: Mapping[str, str]) -> None:
        """Report a checkpoint that this worker has written; called by the saver's thread."""
        saved = kofn_pb2.Saved(iteration=iteration, files=files)
        asyncio.run_coroutine_threadsafe(self._controller.say(saved=saved), self._loop)

    def _hear(self, message: kofn_pb2.ControllerMessage) -> None:
        """Handle the controller's messages after the first Welcome."""
        match message.WhichOneof("message"):
            case "welcome":  # after a loss of the connection
                self._set_peers(message.welcome.peers)
                self._reducer.decision = message.welcome.decision
                self._set_late_policy(message.welcome)
                self._spawn(self._attached_again(message.welcome.generation))
            case "peers":
                self._set_peers(message.peers.peers)
            case "decision":
                self._reducer.decision = message.decision.number
                self._set_late_policy(message.decision)
                news = message.decision.k, message.decision.late_gradient or "as before", self._reducer.iteration
                log.info("k = %d is in force, late gradients: %s; heard in iteration %d", *news)
            case "link":
                self._reducer.link.heard(message.link, self._peers.follow)
            case "regroup":
                self._reducer.regroup(message.regroup.generation)
                log.warning(
                    "the job's slots are lost, or one has a block ahead of all workers: regrouping as generation %d",
                    message.regroup.generation,
                )
                answer = kofn_pb2.Regrouped(generation=message.regroup.generation)
                self._spawn(self._controller.say(regrouped=answer))
            case "checkpoint":
                assert self._saver is not None
                self._spawn(asyncio.to_thread(self._saver.complete, message.checkpoint))
            case "resume":
                self._spawn(self._reducer.resume(message.resume.generation))

    def _set_late_policy(self, message: kofn_pb2.Welcome | kofn_pb2.Decision) -> None:
        """Apply the message's policy for late gradients, if the message has one."""
        if message.late_gradient in RULES:
            self._reducer.set_late_policy(LatePolicy(RULES[message.late_gradient].name, message.age_weight))

    async def _attached_again(self, generation: int) -> None:
        """Continue; if this worker has missed a regroup, first regroup and take the others' results."""
        if generation > self._reducer.generation:
            self._reducer.regroup(generation)
            await self._reducer.resume(generation)
        await self._controller.say(ready=kofn_pb2.Ready(iteration=self._reducer.iteration))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine as a task that leave() cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
