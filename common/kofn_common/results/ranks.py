"""Workers' ranks, and a number for each, as short text also with 1,024 workers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

FEW = 8
"""Up to FEW workers, the numbers are listed one by one."""

RUN = 4
"""RUN consecutive ranks or more are written as a range."""


PARTS = 64
"""The most ranks and ranges that are written out."""


def ranges(ranks: Iterable[int]) -> str:
    """
    >>> ranges([0, 1, 2, 3, 7, 12, 13])
    '0-3, 7, 12, 13'
    >>> ranges(range(0, 400, 2))[-35:]
    '120, 122, 124, 126 ... (200 in all)'
    """
    listed = sorted(ranks)
    parts = [part for run in _runs(listed) for part in ([f"{run[0]}-{run[-1]}"] if len(run) >= RUN else map(str, run))]
    more = f" ... ({len(listed)} in all)" if len(parts) > PARTS else ""
    return ", ".join(parts[:PARTS]) + more


def name_workers(ranks: Iterable[int]) -> str:
    """
    >>> name_workers([2]), name_workers([3, 1])
    ('worker 2', 'workers 1, 3')
    """
    listed = list(ranks)
    return f"worker{'s' * (len(listed) != 1)} {ranges(listed)}"


def each(figures: Sequence[float], form: Callable[[float], str], *, separator: str = ", ") -> str:
    """Return the numbers of all workers in rank order; for many workers the smallest, the median and the largest.

    >>> each([1, 3], '{:.0f}'.format), each([3, *[5] * 30, 9], '{:.0f}'.format)
    ('1, 3', '3 .. 9, median 5')
    """
    if len(figures) <= FEW:
        return separator.join(map(form, figures))
    return f"{form(min(figures))} .. {form(max(figures))}, median {form(median(figures))}"


def _runs(ranks: Sequence[int]) -> Iterator[list[int]]:
    """Yield consecutive ranks together."""
    run: list[int] = []
    for rank in ranks:
        if run and rank != run[-1] + 1:
            yield run
            run = []
        run.append(rank)
    if run:
        yield run
