"""Sharded trainings whose workers are threads beneath a switch, by the slots' rules."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from kofn.config.compress import CompressSection
from kofn.config.schema import Average, JobSection
from kofn.host.collectives.in_network import InNetwork
from kofn.host.protocol.slot_model import SlotModel
from kofn.host.transport.transport import Transport
from tests.host.collectives.crews import addresses
from tests.host.teams import Others
from tests.host.udp_switch import UdpSwitch
from tests.loopback import loopback

T = TypeVar("T")

WORDS = 1
"""Of a block."""


def all_of(workers: int, work: Callable[[int], T]) -> list[T]:
    """What comes of it, by rank; each in a thread."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


@contextmanager
def beneath_a_switch(
    workers: int, elements: int, codec: str, *, k: int = 0, average: Average = "gradients", lose: int = 0
) -> Iterator[list[InNetwork]]:
    """Communicators with exact calls, and elastic ones of so many elements; `lose`: as of UdpSwitch."""
    there, others = addresses(workers), Others()
    job = JobSection(workers=workers, words=WORDS, slots=256, exact_slots=256)
    own, locals = loopback(89, 200), [loopback(89, rank + 1) for rank in range(workers)]
    elastic, exact = (SlotModel(workers=workers, k=one, slots=256) for one in (k or workers, workers))
    with ExitStack() as stack:
        stack.callback(UdpSwitch(elastic, own, lambda rank: locals[rank], lose, {job.exact_id: exact}).close)

        def join(rank: int) -> InNetwork:
            return InNetwork(
                rank,
                elements,
                job=job,
                transport=Transport(own, local=locals[rank]),
                addresses=there,
                compress=CompressSection(codec=codec),
                average=average,
                peer_source=others,
                timeout_s=20.0,
            )

        others.communicators += all_of(workers, join)
        for each in others.communicators:
            stack.enter_context(each)
        yield others.communicators
