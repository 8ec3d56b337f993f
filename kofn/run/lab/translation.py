"""Names of files on another machine: each folder of this machine has its place there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Translation:
    """By a path of this machine: the path of the same file or folder on the other machine."""

    places: Mapping[str, str]

    def __call__(self, text: str) -> str:
        """Return the text with each path, wherever it stands, as the other machine has it. The longest path counts.

        >>> Translation({"/work": "/there", "/work/runs/a": "/tmp/x"})("--counts=/work/runs/a/s:/work/b:/workshop")
        '--counts=/tmp/x/s:/there/b:/workshop'
        """
        longest_first = sorted(self.places, key=len, reverse=True)
        wanted = "|".join(re.escape(path) for path in longest_first)
        return re.sub(rf"(?<![\w/.-])(?:{wanted})(?![\w.-])", lambda found: self.places[found[0]], text)

    def extended(self, here: str, there: str) -> "Translation":
        """Return a translation that also knows another place."""
        return Translation({**self.places, here: there})

    def knows(self, path: str) -> bool:
        """Return whether a path is, or is inside, a place that the other machine has."""
        return self(path) != path
