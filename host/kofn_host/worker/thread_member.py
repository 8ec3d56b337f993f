"""A worker's membership for a training that runs in the calling thread; the event loop runs in another thread."""

from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.errors import HostError
from kofn_host.membership.member import HeldReplica, Member
from kofn_host.training.reducer import Reducer
from kofn_host.transport.event_loop import EventLoop
from kofn_host.worker.job_place import JobPlace
from kofn_host.worker.run import STOP_TIMEOUT_S, member_of


class ThreadMember:
    """A worker's Member and its event loop, until close(); the training thread calls all methods."""

    def __init__(self) -> None:
        self._loop = EventLoop()
        self._reducer: Reducer | None = None
        self._member: Member | None = None

    def join(self, config: Config, place: JobPlace, reducer: Reducer, replica: HeldReplica) -> None:
        """Take part in the job from now on: from the job's start, or from a peer's replica."""
        self._reducer = reducer
        self._member = self._loop.run(member_of(config, place.worker, reducer, replica, place.certs))
        self._loop.run(self._member.join())

    def report(self, report: kofn_pb2.Report) -> None:
        """Send the controller the report of an iteration."""
        assert self._member is not None
        self._loop.spawn(self._member.report(report))

    def fail(self, error: HostError) -> None:
        """End the reducer's calls with this error; any thread may call this."""
        self._loop.spawn(self._fail(error))

    def finish(self, reason: str) -> None:
        """Report why the training has ended, and serve peers until all workers are done."""
        if self._member is not None:
            self._loop.run(self._member.finish(reason, STOP_TIMEOUT_S))

    def close(self) -> None:
        """Leave the job, and end the event loop."""
        if self._member is not None:
            self._loop.run(self._member.leave())
        self._loop.close()

    async def _fail(self, error: HostError) -> None:
        if self._reducer is not None:
            self._reducer.fail(error)
