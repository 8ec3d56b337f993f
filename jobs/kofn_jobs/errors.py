"""Errors of jobs on a cluster."""

from kofn_common.config.errors import KofnError


class JobsError(KofnError):
    """A fault of a training request; the message names the field, the rule and the value found."""


class RequestError(JobsError):
    """A request that contradicts itself or the rules."""


class SplitError(JobsError):
    """The nodes cannot take a request's accelerators; the message has the arithmetic."""


class ClusterError(JobsError):
    """The cluster does not answer, or refuses."""
