"""The checkpoints of a job in one folder, which all its workers read and write.

    FOLDER/00000040/manifest.json   the contents of the checkpoint of iteration 40, with a checksum of every file
    FOLDER/00000040/replica-0       parameters, optimizer and results, written by worker 0
    FOLDER/00000040/ledger-R        worker R's pending gradients
    FOLDER/00000060.part/           a checkpoint that is being written

Every file is synced before its checksum is passed on.  The manifest is written last, and then the folder is renamed: a
power cut leaves a whole checkpoint or a `.part`.  Older checkpoints are removed only after the renaming.
"""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from kofn_common.results.files import sync_folder, write_synced
from kofn_host.arrays import Arrays
from kofn_host.checkpoint.pages import next_page, write_pages
from kofn_host.errors import CheckpointError
from kofn_host.workload.replica import ReplicaState, from_parts, header_of

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
PART = ".part"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint of `iteration`.

    `files`: checksums (XXH3, 128 bits) by name.  `missing`: the ranks whose ledgers are not in the checkpoint.
    `configuration`: the job's configuration, as its processes read it.  `control`: the controller's ControlState
    (kofn.proto).
    """

    iteration: int
    workers: int
    files: Mapping[str, str]
    missing: tuple[int, ...] = ()
    configuration: Mapping[str, Any] = msgspec.field(default_factory=dict)
    control: bytes = b""

    @property
    def ranks(self) -> list[int]:
        """The ranks whose ledgers are in the checkpoint, ascending."""
        return sorted(int(name.removeprefix("ledger-")) for name in self.files if name.startswith("ledger-"))


class _Signed(msgspec.Struct, frozen=True):
    """The content of a manifest's file."""

    manifest: msgspec.Raw
    checksum: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint in its folder."""

    path: Path
    manifest: Manifest

    @property
    def iteration(self) -> int:
        return self.manifest.iteration

    def replica(self) -> ReplicaState:
        """Return the state that all workers share: parameters, optimizer and results."""
        name = next(name for name in self.manifest.files if name.startswith("replica-"))
        return ReplicaState(iteration=self.iteration, arrays=self._arrays(name))

    def ledger(self, rank: int) -> Arrays:
        """Return the arrays of a worker's ledger (compression.ledger_state); empty if the checkpoint lacks it."""
        name = f"ledger-{rank}"
        return self._arrays(name) if name in self.manifest.files else {}

    def _arrays(self, name: str) -> Arrays:
        """Return a file's arrays: a line has all headers and sizes, then each array's bytes begin on a page."""
        parts = dict[str, bytes]()
        with (self.path / name).open("rb") as file:
            for header, size in msgspec.json.decode(file.readline(), type=list[tuple[str, int]]):
                file.seek(next_page(file.tell()))
                parts[header] = file.read(size)
        return from_parts(self.iteration, parts).arrays


@dataclass(slots=True)
class CheckpointFolder:
    """The folder at `path`; the newest `keep` checkpoints stay.

    The checkpoint of iteration `resumed`, at which the job has begun, stays too: late workers take over their ledgers
    from it.
    """

    path: Path
    keep: int = 2
    resumed: int = 0
    _whole: dict[Path, Manifest] = field(default_factory=dict)  # verified by this process

    def write(self, iteration: int, name: str, arrays: Arrays) -> str:
        """Write and sync a file of a checkpoint that is not complete yet; return its checksum."""
        folder = self._part(iteration)
        folder.mkdir(parents=True, exist_ok=True)
        flat = {header_of(key, array): array.reshape(-1).view(np.uint8).data for key, array in arrays.items()}
        head = msgspec.json.encode([(header, len(data)) for header, data in flat.items()]) + b"\n"
        return write_pages(folder / name, [memoryview(head), *flat.values()])

    def complete(self, manifest: Manifest) -> None:
        """Make a checkpoint with written files whole; remove older checkpoints.

        Also remove newer checkpoints: the job was resumed before them, so they belong to an abandoned training.
        """
        folder, content = self._part(manifest.iteration), msgspec.json.encode(manifest)
        signed = _Signed(msgspec.Raw(content), xxhash.xxh3_128(content).hexdigest())
        write_synced(folder / MANIFEST, msgspec.json.encode(signed))
        sync_folder(folder)
        final = self._final(manifest.iteration)
        if final.exists():  # it is damaged, or the job was resumed at an older checkpoint
            shutil.rmtree(final)
        folder.rename(final)
        for path in (self.path, self.path.parent):
            sync_folder(path)
        past = [path for path in self._completed() if path <= final]
        kept = [self._final(self.resumed), *past[-self.keep :]]
        begun = [path for path in self.path.glob("*" + PART) if path < final]
        for path in (*begun, *(path for path in self._completed() if path not in kept)):
            shutil.rmtree(path, ignore_errors=True)

    def give_up(self, iteration: int) -> None:
        """Remove the files of this checkpoint and of earlier incomplete checkpoints: the disk may be full."""
        for path in self.path.glob("*" + PART):
            if path <= self._part(iteration):
                shutil.rmtree(path, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint; None if there is none.  Damaged checkpoints are logged and skipped."""
        for path in reversed(self._completed()):
            try:
                return Checkpoint(path, self._checked(path))
            except CheckpointError as error:
                log.warning("%s; taking the checkpoint before it", error)
        return None

    def at(self, iteration: int) -> Checkpoint:
        """Return the checkpoint of this iteration; CheckpointError if it is missing or damaged."""
        return Checkpoint(self._final(iteration), self._checked(self._final(iteration)))

    def go_back(self, iteration: int) -> None:
        """Remove incomplete checkpoints, and checkpoints of later iterations than this one (0: all)."""
        newer = [path for path in self._completed() if int(path.name) > iteration]
        for path in (*self.path.glob("*" + PART), *newer):
            shutil.rmtree(path)

    def _checked(self, path: Path) -> Manifest:
        """Return the manifest of a whole checkpoint; CheckpointError names the damaged file."""
        if path not in self._whole:
            try:
                signed = msgspec.json.decode((path / MANIFEST).read_bytes(), type=_Signed)
                if xxhash.xxh3_128(signed.manifest).hexdigest() != signed.checksum:
                    raise CheckpointError(f"{path} is damaged: {MANIFEST} has another checksum than it says")
                manifest = msgspec.json.decode(signed.manifest, type=Manifest)
                for name, checksum in manifest.files.items():
                    if xxhash.xxh3_128((path / name).read_bytes()).hexdigest() != checksum:
                        raise CheckpointError(f"{path} is damaged: {name} has another checksum than {MANIFEST} says")
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{path} is damaged: {error}") from error
            self._whole[path] = manifest
        return self._whole[path]

    def _completed(self) -> list[Path]:
        """Return the folders of completed checkpoints, the oldest first."""
        return sorted(path for path in self.path.glob("*") if path.name.isdecimal() and path.is_dir())

    def _part(self, iteration: int) -> Path:
        return self._final(iteration).with_suffix(PART)

    def _final(self, iteration: int) -> Path:
        return self.path / f"{iteration:08d}"
