"""A rendezvous gives a worker everything that it needs of its job, and nothing without the key."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.credentials import Credentials
from kofn_common.rpc.names import worker_name
from kofn_host.errors import PlaceError
from kofn_host.worker import JobPlace
from kofn_host.worker.hand_out import handouts, main
from kofn_host.worker.rendezvous import Rendezvous, fetch

KEY = Fernet.generate_key().decode()

GIVEN = {"KOFN_CONTROLLER": "127.0.0.1:50052", "KOFN_SERVICE": "10.0.0.7", "KOFN_WORKERS": "10.0.0.1,10.0.0.2"}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a worker that knows only the rendezvous."""
    config = tmp_path / "job.toml"
    config.write_text("[job]\nid = 3\nworkers = 2\n")
    make_certificates(tmp_path / "certs", {3: 2})
    with Rendezvous(("127.0.0.1", 0), KEY, handouts(config, GIVEN, tmp_path / "certs")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"KOFN_RENDEZVOUS": f"127.0.0.1:{server.server_address[1]}", "KOFN_RENDEZVOUS_KEY": KEY}
        server.shutdown()


@pytest.mark.slow
def test_worker_gets_its_own_place_and_certificate(asked: dict[str, str]) -> None:
    place = JobPlace.find((1, 2), asked)
    assert (place.rank, place.controller, place.service) == (1, "127.0.0.1:50052", "10.0.0.7")
    assert (place.address, place.workers) == ("127.0.0.1", ("10.0.0.1", "10.0.0.2"))
    assert place.config.read_text().startswith("[job]\nid = 3")
    assert place.certs is not None
    assert Credentials.load(place.certs, worker_name(3, 1), [3]) is not None
    assert [path.name for path in place.certs.glob("*.key")] == [f"{worker_name(3, 1)}.key"]
    assert stat.S_IMODE(place.certs.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("controller", "at", "wrong"),
    [("abc", "127.0.0.1:1", "abc"), ("127.0.0.1:1", "abc", "abc"), ("127.0.0.1:1", "127.0.0.1:65536", ".*:65536")],
)
def test_invalid_address_is_not_handed_out(
    controller: str, at: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["hand_out", "job.toml", "--controller", controller, "--at", at])
    with pytest.raises(SystemExit, match=f"an address must be HOST:PORT, with a port up to 65535, got '{wrong}'"):
        main()


@pytest.mark.slow
def test_workers_own_settings_are_kept(asked: dict[str, str]) -> None:
    place = JobPlace.find(
        (0, 1), {**asked, "KOFN_RANK": "1", "KOFN_METRICS": "mine.jsonl", "KOFN_ADDRESS": "127.9.9.9"}
    )
    assert (place.rank, place.metrics, place.address) == (1, Path("mine.jsonl"), "127.9.9.9")


@pytest.mark.slow
def test_wrong_key_or_rank_gets_nothing(asked: dict[str, str]) -> None:
    other = Fernet.generate_key().decode()
    with pytest.raises(PlaceError, match="KOFN_RENDEZVOUS_KEY is not the one that the rendezvous"):
        JobPlace.find((1, 2), {**asked, "KOFN_RENDEZVOUS_KEY": other})
    with pytest.raises(PlaceError, match="KOFN_RENDEZVOUS_KEY is not the one"):
        JobPlace.find((1, 2), {**asked, "KOFN_RENDEZVOUS_KEY": ""})
    with pytest.raises(PlaceError, match=r"nothing for rank 5 there in 0\.5 s"):
        fetch(5, asked, 0.5)


def test_invalid_address_is_refused() -> None:
    with pytest.raises(PlaceError, match="an address must be HOST:PORT, with a port up to 65535, got 'here'"):
        JobPlace.find((0, 2), {"KOFN_RENDEZVOUS": "here"})
