"""Messages that cannot be decoded: gRPC refuses them, and its log gets one line a minute instead of tracebacks."""

import logging
import time

from google.protobuf.message import DecodeError

SERVER_LOG = "grpc._cython.cygrpc"
QUIET_S = 60.0


class GarbageFilter(logging.Filter):
    """Removes the traceback of a message that cannot be decoded, and the records of further such messages for
    QUIET_S."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not (record.exc_info and isinstance(record.exc_info[1], DecodeError)):
            return True
        if time.monotonic() < self._quiet_until_s:
            return False
        self._quiet_until_s = time.monotonic() + QUIET_S
        record.msg, record.args = f"a message must have its method's type, got {record.exc_info[1]}", ()
        record.exc_info, record.exc_text = None, None
        return True


def quieten() -> None:
    """Filter the log of all gRPC servers of this process."""
    log = logging.getLogger(SERVER_LOG)
    if not any(isinstance(each, GarbageFilter) for each in log.filters):
        log.addFilter(GarbageFilter())
