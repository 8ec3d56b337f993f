"""The P4Runtime server's answer to a request that it cannot carry out: a status code and a sentence.

The code that finds the fault raises Refused, and the server turns it into a gRPC status. For a batch, every update has
its own p4.v1.Error inside one google.rpc.Status (P4Runtime specification, "Error Reporting" of the Write RPC).
"""

from collections.abc import Iterable, Sequence

import grpc
from finsy.proto import p4r, rpc_status
from google.protobuf import any_pb2

from kofn_common.nativebuild.errors import BuildError, CompilerMissing
from kofn_switch.errors import (
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    NoProgram,
    ProgramError,
    StillUsed,
    SwitchError,
    TableFull,
    UnknownObject,
)

STATUS_DETAILS = "grpc-status-details-bin"
DETAILS_MAX = 6000  # bytes: clients accept 8 KiB of metadata by default
BARE_ERROR = 40  # bytes of an error without its message, at most
SPACE = "kofn-switch"


class Refused(SwitchError):  # noqa: N818 - names the request's fate
    """A request that is refused; `code` is the canonical code that the client gets."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        """Take a `message` that names the requested object and the valid choices."""
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refused:
    """Refuse a request that contradicts itself or the p4info."""
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> Refused:
    """Refuse a request for an object that does not exist."""
    return Refused(grpc.StatusCode.NOT_FOUND, message)


def out_of_range(message: str) -> Refused:
    """Refuse a value that does not fit its field, or an index that is not in its array."""
    return Refused(grpc.StatusCode.OUT_OF_RANGE, message)


def denied(message: str) -> Refused:
    """Refuse a request that this client, or any client, may not make."""
    return Refused(grpc.StatusCode.PERMISSION_DENIED, message)


def unimplemented(message: str) -> Refused:
    """Refuse a feature of P4Runtime that this switch lacks."""
    return Refused(grpc.StatusCode.UNIMPLEMENTED, message)


def unready(message: str) -> Refused:
    """Refuse a request that must come after another request."""
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, message)


def exhausted(message: str) -> Refused:
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def choices(names: Iterable[str], most: int = 12) -> str:
    """Return the valid choices for the end of a message: `one of a, b, c`, cut after `most`."""
    listed = list(names)
    if not listed:
        return "there are none"
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"one of {', '.join(listed[:most])}{rest}"


_CODES: dict[type[SwitchError | BuildError], grpc.StatusCode] = {
    ProgramError: grpc.StatusCode.INVALID_ARGUMENT,
    CompilerMissing: grpc.StatusCode.FAILED_PRECONDITION,
    NoProgram: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownObject: grpc.StatusCode.NOT_FOUND,
    InvalidEntry: grpc.StatusCode.INVALID_ARGUMENT,
    EntryExists: grpc.StatusCode.ALREADY_EXISTS,
    StillUsed: grpc.StatusCode.FAILED_PRECONDITION,
    EntryNotFound: grpc.StatusCode.NOT_FOUND,
    TableFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def refusal(error: SwitchError | BuildError) -> Refused:
    """Return the engine's error as a refusal with P4Runtime's code for it; INTERNAL for faults of the switch."""
    if isinstance(error, Refused):
        return error
    kind = next((kind for kind in type(error).__mro__ if kind in _CODES), None)
    return Refused(_CODES[kind] if kind else grpc.StatusCode.INTERNAL, str(error))


def number(code: grpc.StatusCode) -> int:
    """Return the canonical code as a number of google.rpc.Code."""
    value: int = code.value[0]
    return value


def batch_details(outcomes: Sequence[Refused | None]) -> bytes:
    """Return a serialised google.rpc.Status with one p4.v1.Error for each update, also for updates that succeeded
    (None).

    Codes are always included; messages only while they fit into the metadata that a client accepts.
    """
    status = rpc_status.Status(code=number(grpc.StatusCode.UNKNOWN), message=summary(outcomes))
    room = DETAILS_MAX - BARE_ERROR * len(outcomes)
    for outcome in outcomes:
        room -= len(str(outcome)) if outcome else 0
        detail = any_pb2.Any()
        detail.Pack(_error(outcome, with_message=room > 0))
        status.details.append(detail)
    return status.SerializeToString()


def summary(outcomes: Sequence[Refused | None]) -> str:
    """Return one line for clients that show only the outer message: how many updates failed, and the first reason."""
    failed = [(index, outcome) for index, outcome in enumerate(outcomes) if outcome is not None]
    index, first = failed[0]
    return f"{len(failed)} of {len(outcomes)} failed; the first, at index {index}: {first.code.name}: {first}"


def _error(outcome: Refused | None, *, with_message: bool) -> p4r.Error:
    if outcome is None:
        return p4r.Error()
    if not with_message:
        return p4r.Error(canonical_code=number(outcome.code))
    return p4r.Error(canonical_code=number(outcome.code), message=str(outcome), space=SPACE)
