"""TLS of the P4Runtime server: the files of simple_switch_grpc's flags, checked before anything listens."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from kofn_switch.errors import SwitchError


class TlsError(SwitchError):
    """Certificates or keys that do not work; the message names the flag and the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files: the server's certificate (chain) and key, and the authority of clients' certificates."""

    certificate: Path
    key: Path
    authority: Path | None  # the authority of clients' certificates
    client_auth: bool  # whether a client must have a certificate

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC's server. Raise TlsError."""
        self._check()
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        authority = None if self.authority is None else self.authority.read_bytes()
        required = self.client_auth
        return grpc.ssl_server_credentials([pair], authority if required else None, require_client_auth=required)

    def _check(self) -> None:
        """Check the files first, because gRPC would only say that it cannot listen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        flags = {"--grpc-server-cert": self.certificate, "--grpc-server-key": self.key}
        if self.authority is not None:
            flags["--grpc-server-cacert"] = self.authority
        for flag, path in flags.items():
            if not path.is_file():
                raise TlsError(f"{flag} {path}: no such file")
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            files = f"--grpc-server-cert {self.certificate} and --grpc-server-key {self.key}"
            raise TlsError(f"{files}: not a certificate and its key in PEM form: {error}") from error
        if self.authority is None:
            return
        try:
            context.load_verify_locations(self.authority)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"--grpc-server-cacert {self.authority}: not certificates in PEM form: {error}") from error
