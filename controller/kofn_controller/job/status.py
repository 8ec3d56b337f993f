"""A session's state as the Status message of common/kofn_common/rpc/kofn.proto."""

import time
from collections import Counter
from collections.abc import Sequence

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.job.session import JobSession
from kofn_controller.job.status_message import status_message
from kofn_controller.p4runtime.switch_link import SwitchLink

_STARTED_S = time.monotonic()


def status(session: JobSession, links: Sequence[SwitchLink], jobs: Sequence[int]) -> pb.Status:
    """Return the present status of a session; `jobs` lists all jobs of the controller, `links` has the link to the only
    switch, or to a tree's root and its leaves.
    """
    control_loop = session.control_loop
    answer = status_message(control_loop)
    answer.MergeFrom(
        pb.Status(
            job=session.job.id,
            counters=sum((Counter(link.counters) for link in links), Counter()),
            refused=sum((Counter(link.refused) for link in links), Counter()),
            switch_address=links[0].address,
            switch_connected=all(link.connected for link in links),
            tree=map(_tree_switch, links) if len(links) > 1 else (),
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


def _tree_switch(link: SwitchLink) -> pb.TreeSwitch:
    return pb.TreeSwitch(name=link.role.name, address=link.address, connected=link.connected, counters=link.counters)
