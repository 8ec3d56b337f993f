"""A session's state as the Status message of kofn/rpc/kofn.proto."""

import time
from collections.abc import Sequence

from kofn.controller.job.session import JobSession
from kofn.controller.job.status_message import status_message
from kofn.controller.p4runtime.switch_link import SwitchLink
from kofn.rpc import kofn_pb2 as pb

_STARTED_S = time.monotonic()


def status(session: JobSession, link: SwitchLink, jobs: Sequence[int]) -> pb.Status:
    """Return the present status of a session; `jobs` lists all jobs of the controller."""
    control_loop = session.control_loop
    answer = status_message(control_loop)
    answer.MergeFrom(
        pb.Status(
            job=session.job.id,
            counters=link.counters,
            switch_address=link.address,
            switch_connected=link.connected,
            uptime_s=time.monotonic() - _STARTED_S,
            generation=session.job_state.generation,
            regroups=session.life.recovery.regroups,
            jobs=jobs,
            waiting=session.waiting.text,
            switch_k=session.slots.in_force,
            switch_differs=session.slots.differs(),
            switch_k_age_s=time.monotonic() - session.slots.since_s if session.slots.in_force else 0.0,
            k_first=session.agreement.first,
            k_certain=session.agreement.certain,
            k_torn=session.agreement.torn,
        )
    )
    if not session.started:
        answer.live = len(session.members.attached)
    for worker, seat in zip(answer.worker, session.members.seats, strict=True):
        worker.live = seat.stream is not None and worker.live
        worker.state, worker.attachments = seat.state, seat.attachments
    return answer
