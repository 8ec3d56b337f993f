"""A gradient that is reduced while it is computed gets the means of its own iteration, whenever they are read."""

import threading

import numpy as np

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_host.agent.gradient_stream import GradientStream
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.job_coding import JobCoding

ELEMENTS = 100


def test_results_of_the_next_iteration_are_not_mixed_with_this_ones() -> None:
    """With k < n the others may be an iteration ahead before the means of this one are read."""
    coding = JobCoding.of(JobSection(workers=2), CompressSection(), ELEMENTS)
    own, later = (Sums(coding, coding.planner.first(), "gradients") for _ in range(2))
    stream = GradientStream(np.zeros(ELEMENTS, np.float32), coding.layout.elements)
    for sums, mean in ((own, 1.0), (later, 2.0)):
        sums.mean[:], sums.closed[:] = mean, True
        stream.follow(sums)
    assert np.unique(stream.wait(0, ELEMENTS, 1)).tolist() == [1.0]


def test_reducer_is_told_the_awaited_range() -> None:
    """A reducer gets the latest wait, then the one before it, and nothing before it registers."""
    coding = JobCoding.of(JobSection(workers=2, words=1), CompressSection(), 4 * 64)
    sums, size = Sums(coding, coding.planner.first(), "gradients"), coding.layout.elements
    stream = GradientStream(np.zeros(4 * size, np.float32), size)
    told, heard = list[tuple[int, int]](), threading.Condition()

    def tell(first: int, end: int) -> None:
        with heard:
            told.append((first, end))
            heard.notify_all()

    def until(*wanted: tuple[int, int]) -> None:
        with heard:
            assert heard.wait_for(lambda: told == [*wanted], 20), told

    waits = [threading.Thread(target=stream.wait, args=place) for place in ((1, 2 * size + 1), (3 * size, 4 * size))]
    waits[0].start()
    stream.follow(sums)
    while not stream._awaited:
        pass
    stream.tell(tell)
    until((0, 3))
    waits[1].start()
    until((0, 3), (3, 4))
    for closed, then in ((slice(3, 4), (0, 3)), (slice(0, 3), (0, 0))):
        sums.closed[closed] = True
        before = [*told]
        stream.follow(sums)
        until(*before, then)
    for wait in waits:
        wait.join()
