"""kopf's settings."""

from collections.abc import Callable
from pathlib import Path

import kopf

from kofn_common.rpc.certificates import make_server_certificate
from kofn_jobs.request import GROUP

FINALIZER = f"{GROUP}/finalizer"


def configured(
    settings: kopf.OperatorSettings, registry: kopf.OperatorRegistry, login: Callable[..., kopf.ConnectionInfo | None]
) -> None:
    """Set kopf's marks to our names, and its events to phases instead of kopf's steps."""
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.loggers = False
    settings.queueing.error_delays = (1, 2, 4, 8)
    settings.process.ultimate_exiting_timeout = 5.0

    kopf.on.login(id="login", registry=registry)(login)


def webhook_server(host: str, port: int, folder: Path) -> kopf.WebhookServer:
    """Return the API server's webhook at this name, with a certificate that is made in this folder.

    kopf tells the API server its authority at every start.
    """
    make_server_certificate(folder, host)
    return kopf.WebhookServer(
        addr="0.0.0.0",
        port=port,
        host=host,
        certfile=folder / "server.pem",
        pkeyfile=folder / "server.key",
        cadata=(folder / "ca.pem").read_bytes(),
    )
