"""Collectives by MPI (mpi4py over Open MPI), if installed: the baseline of high-performance computing.

Separately started workers become one MPI program: worker 0 runs Open MPI's ompi-server, through which the workers find
each other, and accepts the other workers one after another (MPI_Comm_accept, MPI_Comm_connect).  Only TCP is used, also
between workers of one machine, and only the network of a worker's own address.  A process can use MPI only once.

Like gloo, MPI does not report its internal times and bytes.  Its calls have no time limit, so this module polls
non-blocking calls.
"""

import importlib
import importlib.util
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.peers import PeerCommunicator, Stalled
from kofn_host.collectives.work import WorkOutcome
from kofn_host.errors import CollectiveError

_SERVER = "ompi-server"

_DYING = ("setpriv", "--pdeathsig", "KILL")
"""The prefix of a command whose process must not outlive this process."""

SERVER_S = 10.0
"""The longest wait for the start of ompi-server."""

HALF_BYTES = 2

_PAUSE_S = 1e-4
"""The longest pause between two polls; a pause is a 16th of the call's time so far."""


class Mpi(PeerCommunicator):
    """A Communicator that uses MPI's non-blocking collectives; CollectiveError if MPI is not installed, or in use."""

    _server: "subprocess.Popen[bytes] | None" = None
    _comm: Any = None
    _interrupted = False

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("mpi4py") is None:
            return f"it is mpi4py's, and {sys.executable} has no module mpi4py: pip install mpi4py, or use 'ring'"
        if shutil.which(_SERVER) is None:
            return f"it is Open MPI's, and there is no {_SERVER}: apt install openmpi-bin libopenmpi-dev, or use 'ring'"
        return ""

    def _prepare(self, host: str) -> str:
        if missing := self.missing():
            raise CollectiveError(f"mpi: {missing}")
        if "mpi4py.MPI" in sys.modules:
            raise CollectiveError("a process must have one Mpi at most: MPI is in use in this one already")
        self._host, self._sums = host, dict[Any, Any]()
        if self.rank != 0:
            return ""
        self._server, uri = _serve(host)
        self._mpi = _mpi(host, uri)
        return "\n".join([uri, *(self._mpi.Open_port() for _ in range(1, self.workers))])

    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        """Connect in a thread, which is abandoned if MPI never returns."""
        joined: Future[Any] = Future()
        thread = threading.Thread(target=self._join, args=(cards[0], joined), name="MPI", daemon=True)
        thread.start()
        try:
            self._comm = joined.result(limit_s)
        except TimeoutError as error:
            raise CollectiveError(f"MPI has not connected worker {self.rank} in {limit_s:g} s") from error
        self._end_server()

    def _join(self, card: str, joined: "Future[Any]") -> None:
        """Join this worker and the others into one program; the workers are joined one after another."""
        try:
            uri, *ports = card.split("\n")
            if self.rank != 0:
                self._mpi = _mpi(self._host, uri)
            comm = self._mpi.COMM_SELF
            if self.rank != 0:
                comm = comm.Connect(ports[self.rank - 1]).Merge(high=True)
            for port in ports[self.rank :]:
                comm = comm.Accept(port).Merge(high=False)
            joined.set_result(comm)
        except Exception as error:
            joined.set_exception(CollectiveError(f"MPI does not connect worker {self.rank}: {error}"))

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        watch = task.watch
        watch.turn("encode")
        call, out = task.call, task.out
        try:
            match call.kind:
                case "all_reduce":
                    out[...] = task.given
                    request = self._comm.Iallreduce(self._mpi.IN_PLACE, self._buffer(out), self._sum(out))
                case "reduce_scatter":
                    given = np.ascontiguousarray(task.given)
                    request = self._comm.Ireduce_scatter_block(self._buffer(given), self._buffer(out), self._sum(out))
                case "all_gather":
                    given = np.ascontiguousarray(task.given)
                    request = self._comm.Iallgather(self._buffer(given), self._buffer(out))
                case _:
                    out[...] = task.given
                    request = self._comm.Ibcast(self._buffer(out), call.root)
            watch.turn("wait")
            self._wait(request)
        except self._mpi.Exception as error:
            raise Stalled(f"MPI says {error}") from error
        return self._computed(task)

    def _wait(self, request: Any) -> None:
        """Wait until the request is done; MPI makes progress only while it is polled."""
        begin_s = time.monotonic()
        while not request.Test():
            taken_s = time.monotonic() - begin_s
            if self._interrupted:
                raise CollectiveError("it is interrupted")
            if taken_s > self._timeout_s:
                raise Stalled(f"MPI has not done it in {self._timeout_s:g} s")
            time.sleep(min(_PAUSE_S, taken_s / 16))

    def _buffer(self, array: Array) -> tuple[Any, Any]:
        """Return the array for mpi4py; MPI lacks half-precision types, so `_sum` adds them as 16-bit items."""
        mpi = self._mpi
        kinds = {"float32": mpi.FLOAT, "int32": mpi.INT32_T, "int64": mpi.INT64_T}
        return array.reshape(-1).view(np.uint8), kinds.get(array.dtype.name, mpi.INT16_T)

    def _sum(self, array: Array) -> Any:
        if array.itemsize > HALF_BYTES:
            return self._mpi.SUM
        if array.dtype not in self._sums:
            self._sums[array.dtype] = self._mpi.Op.Create(partial(_add_halves, array.dtype), commute=True)
        return self._sums[array.dtype]

    def _interrupt(self) -> None:
        self._interrupted = True

    def _release(self) -> None:
        self._comm = None
        self._end_server()

    def _end_server(self) -> None:
        """End the name server: connected workers do not need it."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()


def _add_halves(dtype: "np.dtype[Any]", given: Any, into: Any, _: Any) -> None:
    """Add half-precision values in raw memory; MPI calls this function for every piece."""
    total = np.frombuffer(into, dtype)
    np.add(total, np.frombuffer(given, dtype), out=total)


def _serve(host: str) -> "tuple[subprocess.Popen[bytes], str]":
    """Start Open MPI's name server, which dies with this thread; return its process and its URI."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "uri"
        command = [*_DYING, _SERVER, "--no-daemonize", "--report-uri", str(file)]
        server = subprocess.Popen(command, env=os.environ | _settings(host))
        deadline = time.monotonic() + SERVER_S
        while not (file.exists() and file.read_text().endswith("\n")):
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise CollectiveError(f"{_SERVER} does not start at {host}: exit code {server.wait()}")
            time.sleep(_PAUSE_S)
        return server, file.read_text().strip()


def _mpi(host: str, uri: str) -> Any:
    """Initialise MPI and return its module; MPI is never finalized: finalizing would wait for lost workers too."""
    os.environ.update(_settings(host) | {"OMPI_MCA_pmix_server_uri": uri})
    importlib.import_module("mpi4py").rc.finalize = False
    return importlib.import_module("mpi4py.MPI")


def _settings(host: str) -> dict[str, str]:
    """Return Open MPI's settings: TCP in the network of the worker's address only, root allowed, no busy waiting."""
    network = _network(host)
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": network,
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_oob_tcp_if_include": network,
        "OMPI_MCA_pml": "ob1",
    }


def _network(host: str) -> str:
    """Return the network of an address in Open MPI's form, 10.0.0.1/24: Open MPI does not accept a /32."""
    if ipaddress.ip_address(host).is_loopback:
        return "127.0.0.0/8"
    shown = subprocess.run(["ip", "-json", "address", "show", "to", host], capture_output=True, check=False).stdout
    for interface in json.loads(shown or "[]"):
        for address in interface.get("addr_info", ()):
            return f"{address['local']}/{address['prefixlen']}"
    raise CollectiveError(f"mpi: {host} is no address of this machine")


mpi = Mpi
