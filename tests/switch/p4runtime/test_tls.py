"""P4Runtime over TLS, and with certificates of clients."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.names import AUTHORITY, CONTROLLER, OPERATOR, host_name
from kofn_switch.cli.tls import Tls, TlsError
from tests.targets import TARGETS, switch_command
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates of a server, a client and their authority, and those of another authority."""
    made = tmp_path_factory.mktemp("tls")
    make_certificates(made / "ours", {})
    make_certificates(made / "theirs", {})
    return made


@pytest.fixture(scope="module", params=TARGETS)
def address(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a switch that accepts only clients with a certificate."""
    place = f"unix:{tmp_path_factory.mktemp('socket')}/s"
    ours = folder / "ours"
    flags = ["--no-p4", "--", "--grpc-server-addr", place, "--grpc-server-ssl", "--grpc-server-with-client-auth"]
    files = {"cert": f"{CONTROLLER}.pem", "key": f"{CONTROLLER}.key", "cacert": AUTHORITY}
    flags += [part for flag, name in files.items() for part in (f"--grpc-server-{flag}", str(ours / name))]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*switch_command(request.param), *flags], stdout=quiet, stderr=quiet) as process:
        try:
            yield place
        finally:
            process.terminate()


def asked(address: str, credentials: grpc.ChannelCredentials | None, wait: bool = True) -> str:
    """Return the API version."""
    options = [("grpc.ssl_target_name_override", host_name(CONTROLLER))]
    opened = (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials, options)
    )
    with opened as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        answer = stub.Capabilities(p4r.CapabilitiesRequest(), timeout=PATIENCE_S, wait_for_ready=wait)
        return str(answer.p4runtime_api_version)


def credentials(trusted: Path, client: Path | None) -> grpc.ChannelCredentials:
    authority = (trusted / AUTHORITY).read_bytes()
    if client is None:
        return grpc.ssl_channel_credentials(authority)
    key, certificate = (client / f"{OPERATOR}.{kind}" for kind in ("key", "pem"))
    return grpc.ssl_channel_credentials(authority, key.read_bytes(), certificate.read_bytes())


@pytest.mark.slow
def test_only_clients_with_a_certificate_are_accepted(address: str, folder: Path) -> None:
    ours, theirs = folder / "ours", folder / "theirs"
    assert asked(address, credentials(ours, ours)).startswith("1.")
    for bad in (None, credentials(ours, None), credentials(ours, theirs), credentials(theirs, ours)):
        with pytest.raises(grpc.RpcError) as refused:
            asked(address, bad, wait=False)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
def test_files_that_are_no_certificates_are_named(folder: Path) -> None:
    ours = folder / "ours"
    good: dict[str, Any] = {"certificate": ours / f"{CONTROLLER}.pem", "key": ours / f"{CONTROLLER}.key"}
    other = {"certificate": folder / "theirs" / f"{CONTROLLER}.pem"}
    for wrong, words in (
        ({"key": ours / "absent"}, r"--grpc-server-key .*absent: no such file"),
        (other, r"--grpc-server-cert .* and --grpc-server-key .*: not a certificate and its key"),
        ({"authority": ours / f"{CONTROLLER}.key"}, r"--grpc-server-cacert .*: not certificates in PEM form"),
    ):
        with pytest.raises(TlsError, match=words):
            Tls(**{"authority": None, "client_auth": True, **good, **wrong}).credentials()
    Tls(**good, authority=None, client_auth=False).credentials()
