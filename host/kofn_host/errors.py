"""A worker's exceptions."""


class HostError(Exception):
    """Base of every error this package raises."""


class GradientError(HostError):
    """A gradient cannot be aggregated: it is not finite, or too large for the fixed-point range."""


class CodecError(HostError):
    """A codec does not exist, does not fit the job, or breaks the contract of Codec."""


class ProtocolError(HostError):
    """The agent made a request that the protocol's state forbids; the message names the request and the state."""


class LedgerError(HostError):
    """A file does not hold this worker's ledger."""


class AgentError(HostError):
    """The worker cannot continue: no controller, stopped from outside, or results that no worker holds any more."""


class RateError(HostError):
    """A rate cannot be measured: there are no values, or the formula is unknown."""


class CollectiveError(HostError):
    """A collective call failed: a peer is gone or too late, or the peer's call differs from this worker's call."""


class ReplayError(HostError):
    """Recorded gradients cannot be used; the message names the file."""


class CheckpointError(HostError):
    """A checkpoint is damaged, or belongs to another configuration."""


class PlaceError(HostError):
    """A process cannot take its place in a job: its environment, the rendezvous or the configuration does not fit."""


class ZeroError(HostError):
    """A sharded training was asked for something unsupported, or its workers train different models."""
