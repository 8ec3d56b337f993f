"""The end of a failed process's log is shown."""

from pathlib import Path

import pytest

from kofn_common.results.logs import LINE_LENGTH, TAIL_LINES, tail

TORCHRUN = (
    "E1126 12:25:44 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0",
    "Traceback (most recent call last):",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
)
RAISED = ("[rank2]: Traceback (most recent call last):", "[rank2]: ValueError: no data")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (("a", "b"), ("a", "b")),
        ((), ("(the log is empty)",)),
        (tuple(map(str, range(20))), tuple(map(str, range(20 - TAIL_LINES, 20)))),
        (("x" * 10_000,), ("x" * LINE_LENGTH,)),
        (("noise", *RAISED), RAISED),
        (("noise", *RAISED, *TORCHRUN), RAISED),
        (("noise", *TORCHRUN), ("noise",)),
        (TORCHRUN, TORCHRUN[1:]),
    ],
)
def test_the_tail_is_the_script_s_last_traceback_or_its_last_lines(
    lines: tuple[str, ...], shown: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
    assert tail(tmp_path / "log").splitlines() == [f"  {line}" for line in shown]


def test_missing_log_is_reported(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == "  (no log was written)"
