"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a refusal; empty if no name is close.

    >>> did_you_mean("learning_rat", ["batch", "learning_rate"])
    ": did you mean 'learning_rate'?"
    >>> did_you_mean("nothing", ["batch"])
    ''
    """
    close = get_close_matches(name.lower(), known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""
