"""`python -m kofn_jobs.operator`: the operator, in a pod of the cluster or outside it."""

import asyncio
import logging
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import kopf
from lightkube import AsyncClient
from prometheus_client import start_http_server

from kofn_jobs.api import connection
from kofn_jobs.errors import JobsError
from kofn_jobs.operator.handlers import Handlers
from kofn_jobs.operator.lease import Leadership
from kofn_jobs.operator.operate import configured, webhook_server


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Watch only this namespace; may be repeated.")
@click.option("--lease-namespace", default="kofn-system", show_default=True, help="Where the leader's Lease is.")
@click.option(
    "--webhook-host", metavar="NAME", help="The Service of this operator. Without the option: no admission webhook."
)
@click.option("--webhook-port", type=click.IntRange(1, 65535), default=9443, show_default=True)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=9090, show_default=True)
@click.option("--health-port", type=click.IntRange(1, 65535), default=8080, show_default=True)
def main(
    namespaces: tuple[str, ...],
    lease_namespace: str,
    webhook_host: str | None,
    webhook_port: int,
    metrics_port: int,
    health_port: int,
) -> None:
    """Carry out TrainingRequests. If several operators run, only the leader acts. The exit code is 1 if this operator
    loses the lead, and 2 without a cluster.

    Without the admission webhook, requesters are unknown and all requests are denied.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("httpx2", "kopf.objects"):  # a line for each call and each handler
        logging.getLogger(name).setLevel(logging.WARNING)
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    configured(settings, registry, _log_in)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if webhook_host is not None:
                settings.admission.server = webhook_server(webhook_host, webhook_port, Path(folder))
                settings.admission.managed = "kofn.dev"
            asyncio.run(_lead(registry, settings, namespaces, lease_namespace, metrics_port, health_port))
    except JobsError as error:
        print(f"operator: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(1)


async def _lead(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: tuple[str, ...],
    lease_namespace: str,
    metrics_port: int,
    health_port: int,
) -> None:
    """Wait for the lease, and operate while it is held."""
    client = AsyncClient(connection())
    handlers = Handlers(client)
    handlers.register(registry, webhook=settings.admission.server is not None)
    start_http_server(metrics_port, registry=handlers.metrics.registry)
    leadership = Leadership(client, lease_namespace, f"{socket.gethostname()}-{os.getpid()}")
    await leadership.acquire()
    operating = kopf.operator(
        registry=registry,
        settings=settings,
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
        liveness_endpoint=f"http://0.0.0.0:{health_port}/healthz",
    )
    tasks = [asyncio.create_task(operating), asyncio.create_task(leadership.keep())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_in(**known: Any) -> kopf.ConnectionInfo | None:
    """Log in with a pod's service account, elsewhere with a kubeconfig."""
    return kopf.login_with_service_account(**known) or kopf.login_with_kubeconfig(**known)


if __name__ == "__main__":
    main()
