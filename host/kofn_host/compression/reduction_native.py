"""reduction.c through ctypes: an iteration that the engine's thread encodes, settles and averages."""

from kofn_host import structs
from kofn_host.compression.codec import UNIT
from kofn_host.stopwatch import Times


class NativeReduction(structs.Reduction):
    """An iteration for the engine's thread; `keeps` holds the iteration's arrays in memory."""

    keeps: list[object]

    @property
    def squared_error(self) -> float:
        """The squared encoding error in units of the gradient, extrapolated from the sampled blocks."""
        return float(self.error * UNIT**2 * self.encoded / max(1, self.looked_at))

    @property
    def times(self) -> Times:
        return Times(encode=self.encode_s, send=self.send_s, receive=self.settle_s, decode=self.average_s)
