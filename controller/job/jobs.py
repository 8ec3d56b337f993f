"""The sessions of one controller, by job: what concerns one job never reaches another's."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from kofn.controller.errors import AttachError
from kofn.controller.job.session import JobSession
from kofn.rpc import kofn_pb2 as pb


@dataclass(slots=True, kw_only=True)
class Jobs:
    """The sessions of one job or more; a caller that names no job means the first."""

    sessions: dict[int, JobSession] = field(init=False)
    all: Sequence[JobSession]

    def __post_init__(self) -> None:
        self.sessions = {session.job.id: session for session in self.all}

    def of_hello(self, hello: pb.Hello) -> JobSession:
        """The session that a worker belongs to; AttachError names the jobs that there are."""
        if hello.job not in self.sessions:
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, f"job {hello.job}: {self._which()}")
        return self.sessions[hello.job]

    def find(self, job: int) -> JobSession:
        """The session of a job, 0: the first one; AttachError names the jobs that there are."""
        if not job:
            return self.all[0]
        if job not in self.sessions:
            raise AttachError(grpc.StatusCode.NOT_FOUND, f"job {job}: {self._which()}")
        return self.sessions[job]

    async def run(self) -> None:
        """Watch and carry for every job, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for session in self.all:
                group.create_task(session.watch())
                group.create_task(session.carry())

    def _which(self) -> str:
        listed = ", ".join(map(str, self.sessions))
        return f"this controller runs job{'s' * (len(self.sessions) > 1)} {listed}"
