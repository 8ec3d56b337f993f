"""The folder that `kofn certs` makes, and the errors of an unusable one."""

import datetime
import logging
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from kofn_common.rpc import certificates
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import CONTROLLER, OPERATOR, host_name, identity, worker_name
from kofn_common.rpc.security import Credentials

NAMES = [CONTROLLER, OPERATOR, *(worker_name(1, rank) for rank in range(3)), worker_name(2, 0)]


@pytest.fixture
def copy(own: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder, to spoil."""
    return Path(shutil.copytree(own, tmp_path / "copy"))


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_all_files_exist_and_secrets_are_private(own: Path) -> None:
    files = {f"{name}.{kind}" for name in NAMES for kind in ("pem", "key")} | {"ca.pem", "job-1.token", "job-2.token"}
    assert {path.name for path in own.iterdir()} == files
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    for path in own.iterdir():
        if path.suffix in (".key", ".token"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    tokens = [(own / f"job-{job}.token").read_text() for job in (1, 2)]
    assert all(re.fullmatch(r"[0-9a-f]{32}\n", token) for token in tokens)
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize("name", NAMES)
def test_certificate_has_identity_and_purpose(own: Path, name: str) -> None:
    authority, found = certificate(own / "ca.pem"), certificate(own / f"{name}.pem")
    found.verify_directly_issued_by(authority)
    extension = found.extensions.get_extension_for_class
    names = extension(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert names == [host_name(name)]
    assert extension(x509.BasicConstraints).value == x509.BasicConstraints(ca=False, path_length=None)
    usage = extension(x509.KeyUsage)
    assert usage.critical and usage.value.digital_signature and not usage.value.key_cert_sign
    purposes = {purpose._name for purpose in extension(x509.ExtendedKeyUsage).value}
    expected = {CONTROLLER: {"serverAuth"}, OPERATOR: {"clientAuth"}}.get(name, {"serverAuth", "clientAuth"})
    assert purposes == expected
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    now = datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(29) < found.not_valid_after_utc - now <= datetime.timedelta(30)
    assert found.not_valid_before_utc < now


def test_only_the_authority_signs(own: Path) -> None:
    extension = certificate(own / "ca.pem").extensions.get_extension_for_class
    assert extension(x509.BasicConstraints).value == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(x509.KeyUsage).value.key_cert_sign


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_openssl_accepts_the_certificates(own: Path) -> None:
    argv: list[str | Path] = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        own / "ca.pem",
        *(own / f"{name}.pem" for name in NAMES),
    ]
    subprocess.run(argv, check=True, capture_output=True)


def test_names_and_identities_are_inverse() -> None:
    assert [identity(host_name(name)) for name in (*NAMES, worker_name(1, 1023))] == [
        ("controller",), ("operator",), ("worker", 1, 0), ("worker", 1, 1), ("worker", 1, 2), ("worker", 2, 0),
        ("worker", 1, 1023),
    ]  # fmt: skip
    for invalid in ("kofn", "worker-1.job-1", "worker-01.job-1.kofn", "worker-1.job-0.kofn", "xcontroller.kofn"):
        assert identity(invalid) is None
    with pytest.raises(ValueError, match="'job-JOB-worker-RANK' are names of certificates"):
        host_name("job-1")


def test_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SecurityError, match="must be empty or not exist"):
        make_certificates(tmp_path, {1: 1})
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir()
    files = make_certificates(tmp_path / "certs", {1: 1})
    assert "job-1-worker-0.pem" in files
    assert [path.name for path in tmp_path.iterdir()] == ["certs"]


def test_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, authority: object, name: str, usages: object, host: str) -> None:
        if name == worker_name(1, 1):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificates, "_issue", full)
    with pytest.raises(SecurityError, match="certs: cannot be made: No space left on device"):
        make_certificates(tmp_path / "certs", {1: 3})
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_named(copy: Path) -> None:
    (copy / "operator.key").unlink()
    with pytest.raises(SecurityError, match=r"operator\.key: No such file or directory: `kofn certs DIR`"):
        Credentials.load(copy, OPERATOR)
    with pytest.raises(SecurityError, match=r"job 9: .* has tokens of jobs 1"):
        Credentials.load(copy, CONTROLLER, [9])


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ca.pem", "ca.pem holds no certificate in PEM"),
        ("operator.pem", "operator.pem holds no certificate in PEM"),
        ("operator.key", "operator.key holds no private key in PEM"),
        ("job-1.token", "job-1.token holds no token: 32 hexadecimal digits are expected"),
    ],
)
def test_spoilt_file_is_named(copy: Path, file: str, words: str) -> None:
    (copy / file).write_text("something else\n")
    with pytest.raises(SecurityError, match=words):
        Credentials.load(copy, OPERATOR)


def test_files_that_do_not_fit_together_are_named(copy: Path, foreign: Path) -> None:
    shutil.copy(copy / "controller.key", copy / "operator.key")
    with pytest.raises(SecurityError, match=r"operator\.key is not the key of operator\.pem"):
        Credentials.load(copy, OPERATOR)
    shutil.copy(foreign / "controller.pem", copy / "controller.pem")
    with pytest.raises(SecurityError, match=r"controller\.pem is not signed by ca\.pem"):
        Credentials.load(copy, CONTROLLER)


def test_expired_certificate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "VALID", datetime.timedelta(minutes=-1))
    make_certificates(tmp_path / "certs", {1: 1})
    with pytest.raises(SecurityError, match=r"ca\.pem is valid from .* to .* UTC, not now: `kofn certs DIR`"):
        Credentials.load(tmp_path / "certs", OPERATOR)


def test_readable_secrets_give_a_warning_only(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Credentials.load(copy, OPERATOR) is not None
        assert caplog.messages == []
        os.chmod(copy / "operator.key", 0o644)
        assert Credentials.load(copy, OPERATOR) is not None
    assert caplog.messages == [f"{copy / 'operator.key'} can be read by others (mode 0644): 0600 is expected"]


def test_secrets_are_not_printed(own: Path) -> None:
    credentials = Credentials.load(own, OPERATOR)
    assert credentials is not None
    assert "PRIVATE" not in repr(credentials)
    assert credentials.tokens[1] not in repr(credentials)
