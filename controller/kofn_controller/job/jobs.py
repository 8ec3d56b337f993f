"""The sessions of one controller, by job. Events of one job never reach the session of another."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.errors import AttachError
from kofn_controller.job.session import JobSession


@dataclass(slots=True, kw_only=True)
class Jobs:
    """The sessions of one or more jobs. Job 0 in a request means the first one."""

    sessions: dict[int, JobSession] = field(init=False)
    all: Sequence[JobSession]

    def __post_init__(self) -> None:
        self.sessions = {session.job.id: session for session in self.all}

    def of_hello(self, hello: pb.Hello) -> JobSession:
        """Return the session of a worker's job; AttachError lists the existing jobs."""
        if hello.job not in self.sessions:
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, f"job {hello.job}: {self._which()}")
        return self.sessions[hello.job]

    def find(self, job: int) -> JobSession:
        """Return the session of a job, 0 for the first one; AttachError lists the existing jobs."""
        if not job:
            return self.all[0]
        if job not in self.sessions:
            raise AttachError(grpc.StatusCode.NOT_FOUND, f"job {job}: {self._which()}")
        return self.sessions[job]

    async def run(self) -> None:
        """Run watch() and carry() of every session until cancelled."""
        async with asyncio.TaskGroup() as group:
            for session in self.all:
                group.create_task(session.watch())
                group.create_task(session.carry())

    def _which(self) -> str:
        listed = ", ".join(map(str, self.sessions))
        return f"this controller runs job{'s' * (len(self.sessions) > 1)} {listed}"
