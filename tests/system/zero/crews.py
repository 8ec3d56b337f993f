"""Sharded trainings whose workers are threads at a switch that obeys the slots' rules."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from msgspec.structs import replace

from kofn_common.config.compress import CompressSection
from kofn_common.config.faults import FaultSection
from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_host.collectives import BlockRows, InNetwork
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.transport import Transport
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.teams import Others
from tests.host.udp_switch import UdpSwitch
from tests.loopback import loopback
from tests.system.collectives.crews import addresses
from tests.system.collectives.switched import Place

T = TypeVar("T")

WORDS = 1
"""Words of a block."""


def all_of(workers: int, work: Callable[[int], T]) -> list[T]:
    """Run the work for each rank in a thread and return the results by rank."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


TROUBLE = FaultSection(duplicate=0.05, reorder=0.1)
"""Faults of every worker's packets in both directions."""


@contextmanager
def beneath_a_switch(
    workers: int,
    elements: int,
    codec: str,
    *,
    k: int = 0,
    average: Average = "gradients",
    lose: int = 0,
    columns: int = 0,
    trouble: FaultSection | None = None,
) -> Iterator[list[InNetwork]]:
    """Yield communicators with exact calls, and elastic ones of `elements` elements; `lose`: as in UdpSwitch.

    `columns`: elastic calls are reduce-scatters of rows of so many elements; `trouble`: faults of every worker.
    """
    there, others = addresses(workers), Others()
    job = JobSection(workers=workers, words=WORDS, slots=1024, exact_slots=256)
    own, locals = loopback(89, 200), [loopback(89, rank + 1) for rank in range(workers)]
    elastic = SlotModel(workers=workers, k=k or workers, slots=job.slots)
    exact = SlotModel(workers=workers, k=workers, slots=job.exact_slots)
    with ExitStack() as stack:
        stack.callback(UdpSwitch(elastic, own, lambda rank: locals[rank], lose, {job.exact_id: exact}).close)

        def faults(rank: int, direction: str) -> Faults:
            return Faults([trouble] if trouble else [], rank=rank, direction=direction, seed=1)

        def join(rank: int) -> InNetwork:
            compress = CompressSection(codec=codec)
            return InNetwork(
                rank,
                elements,
                job=job,
                transport=Transport(
                    own, local=locals[rank], sending=faults(rank, "send"), receiving=faults(rank, "receive")
                ),
                addresses=there,
                compress=compress,
                average=average,
                rows=BlockRows.of(job, compress, columns) if columns else None,
                peer_source=others,
                timeout_s=20.0,
            )

        others.communicators += all_of(workers, join)
        for each in others.communicators:
            stack.enter_context(each)
        yield others.communicators


def scattering(found: Place, codec: str, columns: int, rank: int, timeout_s: float) -> InNetwork:
    """Return a worker whose elastic calls are reduce-scatters of rows of `columns` elements."""
    job, compress = replace(found.job, words=WORDS), CompressSection(codec=codec)
    return InNetwork(
        rank,
        1,
        job=job,
        transport=found.transport(rank),
        addresses=found.addresses,
        compress=compress,
        rows=BlockRows.of(job, compress, columns),
        generation=found.generation,
        first_iteration=found.first_iteration,
        timeout_s=timeout_s,
    )
