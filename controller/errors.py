"""The errors of this package, as one tree.

ControllerError
 |- TopologyError   the topology file cannot be used
 |- LayoutError     the jobs do not fit the topology or the switch
 |- PushError       the switch refused something, or its program lacks something that the controller needs
 |- ObjectiveError  a plug-in did not give usable costs
 |- AttachError     a worker cannot take part
 |- InspectionError a switch cannot be looked into
 '- StartError      the controller cannot start: no switch, address in use
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who simulates does not wait for it
    import grpc


class ControllerError(Exception):
    """Base of all errors of this package; the message names the object, says what must hold and what was found."""


class TopologyError(ControllerError):
    """A topology file that cannot be used; the message names the file and the entry."""


class LayoutError(ControllerError):
    """Jobs that do not fit the topology or the switch; the message names the field."""


class PushError(ControllerError):
    """The switch refused an update; the message names it as P4 does."""


class InspectionError(ControllerError):
    """A switch lacks what was asked for; the message says what it has."""


class StartError(ControllerError):
    """The controller cannot start; the message says what to do about it."""


class ObjectiveError(ControllerError):
    """A plug-in failed, or what it gave are no costs of k = 1..n."""


class AttachError(ControllerError):
    """A worker cannot take part; `code` is the gRPC status that says so."""

    def __init__(self, code: "grpc.StatusCode", message: str) -> None:
        """Keep the status code beside the message."""
        super().__init__(message)
        self.code = code
