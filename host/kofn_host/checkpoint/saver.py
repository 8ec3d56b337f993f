"""A worker's part of each checkpoint: it is copied between two iterations, and written while the training continues.

A checkpoint belongs to the same iteration at all workers.  The event loop copies the ledger when that iteration has
ended and the next one has not begun.  The training thread copies the replica when the iteration is applied.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.arrays import Arrays
from kofn_host.checkpoint.folder import Checkpoint, CheckpointFolder, Manifest
from kofn_host.checkpoint.resume import check_configuration, ledgers_of, plain
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_state import multiples
from kofn_host.workload.replica import Replica, ReplicaState

log = logging.getLogger(__name__)

QUEUED = 2
"""The most checkpoints that wait for the disk; further checkpoints are left out."""


class Saver:
    """Saves worker `rank`'s part of the job's checkpoints to `folder`, every run.checkpoint_every iterations.

    `ledger`: the worker's ledger, None if the worker has none.  `saved` is called, in another thread, with an iteration
    and the checksums of the written files, by name.
    """

    def __init__(self, folder: CheckpointFolder, config: Config, rank: int, ledger: Ledger | None) -> None:
        self._folder, self._config, self._rank, self._ledger = folder, config, rank, ledger
        self._every = config.run.checkpoint_every
        self.saved: Callable[[int, Mapping[str, str]], None] = lambda iteration, files: None
        self.sync: Callable[[], None] = lambda: None
        """A function that brings the worker's metrics to the disk."""
        self.leads = False
        """Whether this worker saves the replica, which is the same at all workers."""
        if ledger is not None:
            ledger.state.copy_every = self._every
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="kofn-checkpoint")
        self._copied: list[tuple[int, Mapping[str, Arrays]]] = []
        self._spare: list[Arrays] = []
        """The memory of a replica's copy."""
        self._writing: list[Future[None]] = []

    # -- resuming

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint; CheckpointError if its configuration does not fit this job."""
        if (checkpoint := self._folder.latest()) is not None:
            check_configuration(checkpoint, self._config)
        return checkpoint

    def restore_ledger(self, iteration: int) -> None:
        """Take over this worker's part of the checkpoint at which the job has resumed."""
        if self._ledger is not None:
            checkpoint = self._folder.at(iteration)
            self._ledger.state.restore(iteration, ledgers_of(checkpoint, self._rank, self._config.job.workers))

    def restore(self, iteration: int) -> ReplicaState:
        """Return the replica of this checkpoint, at which the job resumes."""
        self._folder.resumed = iteration
        return self._folder.at(iteration).replica()

    # -- saving

    def applied(self, first: int, last: int, replica: Replica) -> None:
        """Copy the arrays of each due checkpoint, for write(): iterations first..last are applied."""
        for iteration in multiples(self._every, first, last):
            ledger = None if self._ledger is None else self._ledger.state.take(iteration)
            arrays = {} if ledger is None else {f"ledger-{self._rank}": ledger}
            into = self._spare.pop() if self._spare else None
            if self.leads and iteration == last and (state := replica.state(into)) is not None:
                arrays[f"replica-{self._rank}"] = state.arrays
            self._copied.append((iteration, arrays))

    def write(self) -> None:
        """Let another thread write the copies; the metrics file must have the lines up to these iterations."""
        for iteration, arrays in self._copied:
            self._writing = [writing for writing in self._writing if not writing.done()]
            if len(self._writing) < QUEUED:
                self._writing.append(self._disk.submit(self._write, iteration, arrays))
            else:
                log.warning("no checkpoint of iteration %d: the disk is still writing earlier ones", iteration)
                self._give_back(arrays)
        self._copied.clear()

    def complete(self, message: kofn_pb2.Checkpoint) -> None:
        """Complete a checkpoint whose files all workers have saved; a failure is logged."""
        manifest = Manifest(
            iteration=message.iteration,
            workers=self._config.job.workers,
            files=dict(message.files),
            missing=tuple(message.control.missing),
            configuration=plain(self._config),
            control=message.control.SerializeToString(),
        )
        try:
            self._folder.complete(manifest)
        except OSError as error:
            log.error("no checkpoint of iteration %d: %s", message.iteration, error)
            return
        log.info("checkpoint of iteration %d: %s", message.iteration, self._folder.path)

    def close(self) -> None:
        """Wait until everything is written."""
        self._disk.shutdown()

    def _write(self, iteration: int, arrays: Mapping[str, Arrays]) -> None:
        try:
            self.sync()
            files = {name: self._folder.write(iteration, name, part) for name, part in arrays.items()}
        except OSError as error:  # a full disk ends no training
            log.error("no checkpoint of iteration %d: %s: %s", iteration, self._folder.path, error.strerror)
            self._folder.give_up(iteration)
            return
        finally:
            self._give_back(arrays)
        self.saved(iteration, files)

    def _give_back(self, copies: Mapping[str, Arrays]) -> None:
        """Reuse the memory of copies that are written."""
        for name, arrays in copies.items():
            if self._ledger is not None and name.startswith("ledger-"):
                self._ledger.state.give_back(arrays)
            else:
                self._spare = [arrays]
