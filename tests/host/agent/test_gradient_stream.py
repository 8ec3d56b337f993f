"""A gradient that is reduced while it is computed has the means of its own iteration, whoever looks when."""

import numpy as np

from kofn.config.compress import CompressSection
from kofn.config.schema import JobSection
from kofn.host.agent.gradient_stream import GradientStream
from kofn.host.compression.aggregate import Sums
from kofn.host.compression.job_coding import JobCoding

ELEMENTS = 100


def test_results_of_the_next_iteration_are_not_its_own() -> None:
    """The others may be a whole iteration further before the means of this one are looked at (k < n)."""
    coding = JobCoding.of(JobSection(workers=2), CompressSection(), ELEMENTS)
    own, later = (Sums(coding, coding.planner.first(), "gradients") for _ in range(2))
    stream = GradientStream(np.zeros(ELEMENTS, np.float32), coding.layout.elements)
    for sums, mean in ((own, 1.0), (later, 2.0)):
        sums.mean[:], sums.closed[:] = mean, True
        stream.follow(sums)
    assert np.unique(stream.wait(0, ELEMENTS, 1)).tolist() == [1.0]
