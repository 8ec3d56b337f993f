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
    """Let kopf's marks on objects have kofn's names, and let kopf post no events about its own steps: the handlers
    post an event for each phase."""
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.loggers = False
    settings.queueing.error_delays = (1, 2, 4, 8)
    settings.process.ultimate_exiting_timeout = 5.0

    kopf.on.login(id="login", registry=registry)(login)


def webhook_server(host: str, port: int, folder: Path) -> kopf.WebhookServer:
    """Return the webhook that the API server calls at the name `host`. Its certificate is made in `folder`.

    At every start, kopf gives the API server the authority of this certificate.
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
