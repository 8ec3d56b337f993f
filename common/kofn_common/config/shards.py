"""The TOML file's [[shard]]: classes of images that one worker alone holds."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.model import ModelSection
from kofn_common.config.section import Section, WholeNumber

CLASSES = 10
"""The number of classes of images: the ten digits."""


class ShardSection(Section, frozen=True):
    """One worker that alone holds all training images of some classes, and no others."""

    worker: WholeNumber
    classes: tuple[Annotated[int, Meta(ge=0, lt=CLASSES)], ...]

    def check(self, owners: dict[int, int]) -> None:
        """Add this shard's classes to `owners`. Raise ConfigError if a class has an owner already."""
        if not self.classes:
            raise ConfigError(f"shard.classes of worker {self.worker} must have one or more classes, got none")
        for label in self.classes:
            if label in owners:
                raise ConfigError(
                    f"shard.classes of worker {self.worker} has {label}, which worker {owners[label]} holds:"
                    " each class can be given once"
                )
            owners[label] = self.worker


def check_shards(shards: Sequence[ShardSection], job: JobSection, model: ModelSection) -> None:
    """Check that each worker has at most one shard and each class at most one owner, and that the workers without a
    shard have the classes without an owner."""
    if shards and model.replay is not None:
        raise ConfigError("shard and model.replay must not both be given: a replay reads no image")
    if shards and model.dirichlet is not None:
        raise ConfigError("shard and model.dirichlet must not both be given: both deal out the images")
    owners: dict[int, int] = {}
    sharing = set(range(job.workers))
    for shard in shards:
        job.check_ranks((shard.worker,), "shard.worker")
        if shard.worker not in sharing:
            raise ConfigError(f"a worker must have one shard, got two for shard.worker {shard.worker}")
        sharing.remove(shard.worker)
        shard.check(owners)
    left = [label for label in range(CLASSES) if label not in owners]
    if left and not sharing:
        raise ConfigError(
            f"shard leaves no worker for the classes {left}: give them to a worker, or leave one worker without a shard"
        )
    if sharing and not left:
        raise ConfigError(
            f"shard leaves no class for the workers {sorted(sharing)}: leave a class without an owner, or give them"
            " shards"
        )
