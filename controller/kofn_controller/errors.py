"""The errors of this package, as one tree.

ControllerError
 |- TopologyError   the topology file cannot be used
 |- LayoutError     the jobs do not fit the topology or the switch
 |- PushError       the switch refuses something, does not answer, or runs a program that lacks something
 |   '- EntryError  an entry does not fit the P4 program
 |- ObjectiveError  a plug-in does not give usable costs
 |- AttachError     a worker cannot take part
 |- InspectionError the slots of a switch cannot be read
 '- StartError      the controller cannot start: no switch, address in use
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a simulation does not import gRPC, which takes long
    import grpc


class ControllerError(Exception):
    """The base of all errors of this package. Its message names the object, the condition, and the value found."""


class TopologyError(ControllerError):
    """The topology file cannot be used; the message names the file and the entry."""


class LayoutError(ControllerError):
    """The jobs do not fit the topology or the switch; the message names the field."""


class PushError(ControllerError):
    """The switch refuses an update, does not answer, or runs another program; the message has the names of P4."""


class EntryError(PushError):
    """An entry does not fit the P4 program, or the data plane failed to build it; trying again does not help."""


class InspectionError(ControllerError):
    """A switch does not have the wanted program, job or registers; the message says what the switch has."""


class StartError(ControllerError):
    """The controller cannot start; the message says what to do."""


class ObjectiveError(ControllerError):
    """A plug-in fails, or its result is not the costs of k = 1..n."""


class AttachError(ControllerError):
    """A worker cannot take part; `code` is the gRPC status of the answer."""

    def __init__(self, code: "grpc.StatusCode", message: str) -> None:
        super().__init__(message)
        self.code = code
