"""Access to the page, and its stream."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kofn.web import connections
from kofn.web.reader import RunReader
from kofn.web.server import PageServer
from kofn_common.config.errors import ConfigError
from tests.waiting import until
from tests.web.lab import recorded


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    folder = recorded(tmp_path_factory.mktemp("page") / "run")
    with PageServer(RunReader(folder.path, over=lambda: True)) as server:
        yield server


def get(page: PageServer, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


PATHS = ("/", "/page.js", "/uplot/uPlot.esm.js", "/frames", "/metrics", "/nothing")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", ["", "?token=", "?token=wrong"])
def test_wrong_or_missing_token_is_refused(page: PageServer, path: str, wrong: str) -> None:
    status, _, body = get(page, path + wrong)
    assert status == 403
    assert body == b"403: this page needs the token of the URL that kofn has printed\n"


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", "[::1]"])
def test_other_host_names_are_refused(page: PageServer, host: str) -> None:
    status, _, _ = get(page, f"/?token={page.token}", Host=host)
    assert status == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1"])
def test_host_name_of_a_tunnel_is_accepted(page: PageServer, host: str) -> None:
    assert get(page, f"/?token={page.token}", Host=host)[0] == 200


def test_token_becomes_a_cookie(page: PageServer) -> None:
    status, headers, body = get(page, f"/?token={page.token}")
    assert status == 200
    assert b"<title>kofn</title>" in body
    cookie = headers["Set-Cookie"]
    assert cookie == f"kofn_{page.port}={page.token}; HttpOnly; SameSite=Strict; Path=/"
    assert get(page, "/page.js", Cookie=cookie.partition(";")[0])[0] == 200
    assert get(page, "/page.js", Cookie=f"kofn_{page.port}=wrong")[0] == 403


def test_nothing_is_loaded_from_elsewhere(page: PageServer) -> None:
    for path in ("/", "/page.js", "/frames", "/metrics"):
        headers = get(page, f"{path}?token={page.token}")[1]
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert headers["Referrer-Policy"] == "no-referrer"
    files = [path for path in Path("kofn/web/page").rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) > 10
    for file in (file for file in files if file.parent.name != "uplot"):  # uPlot has addresses in comments
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not a place
        assert "http:" not in text and "https:" not in text, file


def test_server_listens_on_the_loopback_only(page: PageServer) -> None:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{page.port:04X}")] == [
        "0100007F"
    ]


def events(text: str) -> list[dict[str, Any]]:
    parts = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.split("\n\n") if part]
    return [{**part, "data": json.loads(part["data"])} for part in parts]


def test_finished_run_is_one_stream(page: PageServer) -> None:
    _, headers, body = get(page, f"/frames?token={page.token}")
    assert headers["Content-Type"].startswith("text/event-stream")
    first, *frames, last = events(body.decode())
    assert first["event"] == "run"
    assert first["data"]["trials"] == ["throughput", "all"]
    assert first["data"]["jobs"][0]["link_mbps"] == [200.0] * 4
    assert {frame["event"] for frame in frames} == {"frame"}
    assert [int(frame["id"]) for frame in frames] == list(range(len(frames)))
    assert [frames[at]["data"]["trial"] for at in (0, -1)] == [0, 1]
    assert last == {"event": "end", "data": {}}


def test_reconnecting_client_gets_the_rest(page: PageServer) -> None:
    _, _, body = get(page, f"/frames?token={page.token}", **{"Last-Event-ID": "40"})
    assert events(body.decode())[1]["id"] == "41"


@pytest.mark.slow
def test_active_run_is_streamed_until_its_end(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", trials=1)
    over = False
    with PageServer(RunReader(folder.path, over=lambda: over, clock=lambda: 1_002.0)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", f"/frames?token={server.token}")
        answer = connection.getresponse()
        seen = b""
        while b"event: live" not in seen:  # all existing frames, and the run goes on
            seen += answer.read1()
        assert b"event: frame" in seen
        assert b"event: end" not in seen
        over = True
        seen += answer.read()
        connection.close()
    assert events(seen.decode())[-1]["event"] == "end"


def test_port_in_use_is_named(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", trials=1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot serve the page at port {port}: Address already in use"):
            PageServer(RunReader(folder.path, over=lambda: True), port=port)


def test_configured_token_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOFN_WEB_TOKEN", "mine")
    folder = recorded(tmp_path / "run", trials=1)
    with PageServer(RunReader(folder.path, over=lambda: True)) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/?token=mine"
        assert get(server, "/metrics", Authorization="Bearer mine")[0] == 200
        assert get(server, "/metrics", Authorization="Bearer other")[0] == 403


@pytest.mark.parametrize("token", ["a&b=c", "a b+c;d", "caf\u00e9", "#/?%"])
def test_any_token_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("KOFN_WEB_TOKEN", token)
    folder = recorded(tmp_path / "run", trials=1)
    with PageServer(RunReader(folder.path, over=lambda: True)) as server:
        status, headers, _ = get(server, server.url.partition(str(server.port))[2])
        assert status == 200
        assert get(server, "/page.js", Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200


@pytest.mark.parametrize("last", ["9" * 5000, "9" * 19, "-1", "\u00b2", "x"])
def test_wrong_event_number_begins_at_the_first_frame(page: PageServer, last: str) -> None:
    status, _, body = get(page, f"/frames?token={page.token}", **{"Last-Event-ID": last})
    assert status == 200 and events(body.decode())[1]["id"] == "0"


def test_half_open_connections_are_few_and_soon_closed(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MOST", 4)
    monkeypatch.setattr(connections, "HEADER_S", 0.5)
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(("127.0.0.1", page.port), 20)) for _ in range(12)]
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX")
        until(lambda: sum(map(closed, clients)) >= len(clients) - 4)  # at once
        until(lambda: all(closed(client) for client in clients))
    assert get(page, f"/?token={page.token}")[0] == 200


def closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_second_request_of_a_connection_has_the_same_limit(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.2)
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request("GET", f"/page.js?token={page.token}")
    assert connection.getresponse().read()
    with connection.sock as client:
        client.send(b"GET / HT")
        assert client.recv(1) == b""
