"""Ranks that a configuration gives as text."""

import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config

ENTRY = '[job]\nworkers = 20\n[[straggler]]\nmean_ms = 1\nworkers = "{}"\n'


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", range(20)),
        ("3", [3]),
        ("0-2,7", [0, 1, 2, 7]),
        ("4-19:5, 1", [1, 4, 9, 14, 19]),
        ("5-3", []),
        ("15-", range(15, 20)),
        ("0-:8", [0, 8, 16]),
    ],
)
def test_text_names_ranks(text: str, ranks: list[int]) -> None:
    assert Config.parse(ENTRY.format(text)).straggler[0].workers == (*ranks,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most", "straggler.workers must be a list of ranks, 'all', 'last 2', or text like '0-9,20-98:2', got 'most'"),
        ("0-9:0", "got '0-9:0'"),
        ("-3", "got '-3'"),
        ("0-20", "straggler.workers must be 0 to 19 (job.workers - 1), got 20"),
        ("last 21", "straggler.workers must be 'last 1' to 'last 20' with job.workers = 20, got 'last 21'"),
        ("last 0", "must be 'last 1' to 'last 20' with job.workers = 20, got 'last 0'"),
    ],
)
def test_other_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.parse(ENTRY.format(text))
    assert words in str(refused.value)


def test_rack_is_named_by_its_number() -> None:
    text = ENTRY.format("rack 3").replace("workers = 20", "workers = 20\nracks = 4")
    assert Config.parse(text).straggler[0].workers == (15, 16, 17, 18, 19)
    with pytest.raises(ConfigError, match=r"must be 'rack 0' to 'rack 3' with job.racks = 4, got 'rack 4'"):
        Config.parse(text.replace("rack 3", "rack 4"))


def test_all_are_those_of_the_default_job() -> None:
    assert Config.parse('[[link]]\nworkers = "all"\nmbps = 1\nat_iteration = 1').link[0].workers == (0, 1, 2, 3)
