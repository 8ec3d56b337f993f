"""Errors of jobs on a cluster."""

from kofn.config.errors import KofnError


class JobsError(KofnError):
    """A wrong training request; the message names the field, what must hold and what was found."""


class RequestError(JobsError):
    """A request that says something that is not allowed."""


class SplitError(JobsError):
    """So many accelerators cannot be had of these nodes; the message has the arithmetic."""


class ClusterError(JobsError):
    """The cluster does not answer, or refuses."""
