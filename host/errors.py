"""What can go wrong in a worker."""


class HostError(Exception):
    """Base of every error this package raises."""


class WireError(HostError):
    """A datagram that is not a kofn packet of this version."""


class ChecksumError(WireError):
    """A kofn packet whose content changed on its way."""


class GradientError(HostError):
    """A gradient that cannot be aggregated: not finite, or too large for the fixed-point range."""


class CodecError(HostError):
    """A codec that does not exist, does not fit the job, or does not keep what a Codec promises."""


class ProtocolError(HostError):
    """The agent asked the protocol for something it must not do; says what and in which state."""


class LedgerError(HostError):
    """A file that should hold this worker's ledger and does not."""


class AgentError(HostError):
    """The worker cannot go on: no controller, stopped from outside, or results that nobody holds any more."""


class RateError(HostError):
    """A rate was asked for that cannot be measured, of nothing or by an unknown formula."""


class CollectiveError(HostError):
    """An all-reduce that cannot be done: a peer is gone or too late, or gives something else than this worker."""


class ReplayError(HostError):
    """Recorded gradients that cannot be used; names the file."""


class ZeroError(HostError):
    """A sharded training that is asked for what it cannot do, or whose workers do not train the same."""
