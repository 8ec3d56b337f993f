"""How kopf shall behave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kopf

from kofn.jobs.request import GROUP

FINALIZER = f"{GROUP}/finalizer"


def configured(
    settings: kopf.OperatorSettings, registry: kopf.OperatorRegistry, login: Callable[[], kopf.ConnectionInfo | None]
) -> None:
    """Its marks have our names; events are posted for phases, not for kopf's own steps."""
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.loggers = False
    settings.queueing.error_delays = (1, 2, 4, 8)
    settings.process.ultimate_exiting_timeout = 5.0

    def log_in(**_: Any) -> kopf.ConnectionInfo | None:
        return login()

    kopf.on.login(id="login", registry=registry)(log_in)


def webhook_server(host: str, port: int, certs: Path) -> kopf.WebhookServer:
    """For the API server, at this name; `certs` as cert-manager writes them: tls.crt, tls.key, ca.crt."""
    return kopf.WebhookServer(
        addr="0.0.0.0",
        port=port,
        host=host,
        certfile=certs / "tls.crt",
        pkeyfile=certs / "tls.key",
        cadata=(certs / "ca.crt").read_bytes(),
    )
