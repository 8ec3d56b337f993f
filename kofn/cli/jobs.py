"""`kofn jobs`: training requests on a cluster, or on this machine without a cluster."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from kofn.report.table import PlainTable, make_console
from kofn.run import accelerators
from kofn.run.display import say
from kofn.run.ending import ending
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import KofnError
from kofn_common.results.folder import RunFolder, default_path
from kofn_common.results.worker_metrics import read_begun
from kofn_common.wire.sizes import RACK_WORKERS_MAX
from kofn_jobs.errors import ClusterError, RequestError
from kofn_jobs.manifests import ATTEMPT_LABEL, CONTROL, REQUEST_LABEL, ROLE_LABEL, WORKER, configuration
from kofn_jobs.request import TrainingRequest
from kofn_jobs.split import Capacity, split

if TYPE_CHECKING:
    from lightkube import Client

EXIT_FAILED = 1

FAILED_RUN = 1
"""The exit code of `kofn run` for a failed run. Any other failure, such as a wrong command line, would come again in
another attempt."""

THIS_MACHINE = "this machine"

EXAMPLES = """
\b
Examples:
  kofn jobs run job.yaml                  on this machine, without a cluster
  kofn jobs submit job.yaml -n ml
  kofn jobs list
  kofn jobs logs digits --rank 3 --follow
  kofn jobs delete digits

\b
Exit codes: 0 done, 1 refused or failed, 2 the command line is wrong.
"""

_file = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_namespace = click.option("--namespace", "-n", help="The cluster's namespace.  [default: the context's]")


@click.group(epilog=EXAMPLES)
def jobs() -> None:
    """Training jobs: submit a TrainingRequest to a Kubernetes cluster, or run it on this machine.

    KUBECONFIG or ~/.kube/config names the cluster, where the operator of jobs/deploy/ runs. The commands need
    kofn[jobs].
    """


@jobs.command()
@_file
@_namespace
def submit(path: Path, namespace: str | None) -> None:
    """Check a request and submit it. Fields, configuration and, if the request names nodes, the split are checked."""
    with ending("jobs submit"), cluster(namespace) as client:
        from kofn_jobs.api import CONFLICT, ApiError, decoded  # noqa: PLC0415  # needs kofn[jobs]

        document = load(path)
        request = checked(document)
        name, where = request.metadata.name, namespace or document["metadata"].get("namespace") or client.namespace
        document["metadata"]["namespace"] = where
        try:
            client.create(decoded(document))
        except ApiError as error:
            if error.status.code != CONFLICT:
                raise
            there = _found(client, name, where)
            raise ClusterError(
                f"{name} is there already in {where} ({there.status.phase}): another metadata.name, or"
                f" kofn jobs delete {name}"
            ) from error
        say(make_console(), f"{name} is submitted to {where}: kofn jobs list")


@jobs.command("list")
@_namespace
def listing(namespace: str | None) -> None:
    """List requests and their phases."""
    with ending("jobs list"), cluster(namespace) as client:
        from kofn_jobs.api import Requests  # noqa: PLC0415

        found = [_read(request) for request in client.list(Requests)]
        headings = ("job", "accelerators", "phase", "ready", "attempt", "k", "message")
        make_console().print(PlainTable(headings, list(map(_row, found)), texts=("job", "phase", "message")))


def _row(request: TrainingRequest) -> tuple[str, ...]:
    status = request.status
    k = "" if status.k is None else str(status.k)
    numbers = (str(request.spec.accelerators), status.phase, status.ready, str(status.attempt or ""), k)
    return (request.metadata.name, *numbers, status.message)


@jobs.command()
@click.argument("name")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="The worker whose log it is.")
@click.option("--control", type=click.Choice(["switch", "controller"]), help="The switch's or the controller's log.")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until its end.")
@_namespace
def logs(name: str, rank: int, control: str | None, follow: bool, namespace: str | None) -> None:
    """Print the log of a worker, the switch or the controller, in the newest attempt."""
    with ending("jobs logs"), cluster(namespace) as client:
        from kofn_jobs.api import Pod  # noqa: PLC0415

        role = WORKER if control is None else CONTROL
        pods: list[Any] = list(client.list(Pod, labels={REQUEST_LABEL: name, ROLE_LABEL: role}))
        if not pods:
            _found(client, name, client.namespace)
            raise ClusterError(f"{name} has no pods of a {role}: the pods are gone, or not there yet")
        newest = max(_attempt(pod) for pod in pods)
        names = _of_ranks([pod for pod in pods if _attempt(pod) == newest])
        if control is None and rank >= len(names):
            raise ClusterError(f"--rank {rank}: {name} has workers 0 to {len(names) - 1}")
        chosen, container = (names[rank], "worker") if control is None else (names[0], control)
        for line in client.log(chosen, container=container, follow=follow, newlines=False):
            click.echo(line)


def _attempt(pod: Any) -> int:
    return int(pod.metadata.labels.get(ATTEMPT_LABEL, 0))


def _of_ranks(pods: list[Any]) -> list[str]:
    """Return the names of the pods by rank, in the order of node and index; an evicted pod gives way to its successor.

    A Job adds five characters to the names of its pods.
    """
    chosen: dict[tuple[int, ...], Any] = {}
    for pod in sorted(pods, key=lambda pod: pod.status is None or pod.status.phase != "Failed"):
        place = re.sub(r"-[a-z0-9]{5}$", "", pod.metadata.name)
        chosen[tuple(int(part) for part in place.split("-") if part.isdecimal())] = pod
    return [chosen[place].metadata.name for place in sorted(chosen)]


@jobs.command()
@click.argument("name")
@_namespace
def delete(name: str, namespace: str | None) -> None:
    """Delete a request and all its objects."""
    with ending("jobs delete"), cluster(namespace) as client:
        from kofn_jobs.api import Requests  # noqa: PLC0415

        _found(client, name, client.namespace)
        client.delete(Requests, name)
        say(make_console(), f"{name} and what belongs to it are deleted")


@jobs.command()
@_file
@click.option("--data", type=click.Path(path_type=Path), help="A folder in place of spec.data's volume: KOFN_DATA.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results.  [default: as for kofn run]")
def run(path: Path, data: Path | None, out: Path | None) -> None:
    """Train what a request asks for on this machine, in namespaces, without a cluster. Needs root.

    The request is split as on a cluster, over the nodes that it names; if it names none, this machine runs all workers.
    A run that fails is repeated, up to spec.backoffLimit times, unless it fails before its first iteration.
    """
    with ending("jobs run"):
        request = checked(load(path))
        nodes = request.spec.capacities or (Capacity(THIS_MACHINE, RACK_WORKERS_MAX),)
        parts = split(request.spec.accelerators, nodes, request.spec.least_per_node)
        say(make_console(), f"{request.spec.accelerators} workers: {', '.join(map(str, parts))}")
        say(make_console(), _devices(request))
        sys.exit(_train(request, data, out))


def _devices(request: TrainingRequest) -> str:
    """Return a line about the workers' devices on this machine."""
    resource = request.spec.resource
    if not request.spec.script or resource == "cpu":
        return "the workers use the CPU"
    if (found := accelerators.present()) is None:
        return f"this machine has no accelerator: the workers use the CPU, in place of {resource}"
    return f"{len(found[1])} accelerators for {request.spec.accelerators} workers, in turn ({found[0]})"


def _train(request: TrainingRequest, data: Path | None, out: Path | None) -> int:
    """Train, with repetitions after failures; return the exit code of the last attempt."""
    environment = os.environ | ({"KOFN_DATA": str(data.resolve())} if data is not None else {})
    with tempfile.TemporaryDirectory(prefix="kofn-job-") as folder:
        config, file = configuration(request), Path(folder) / "job.toml"
        if request.spec.script and request.spec.resource != "cpu" and accelerators.present() is not None:
            config = replace(config, torch=replace(config.torch, device="auto"))
        file.write_text(to_toml(config))
        Path(folder, "script.py").write_text(request.spec.script)
        run = [sys.executable, "-m", "kofn.cli.start", "run"]
        attempts, path = request.spec.backoff_limit + 1, Path()
        for attempt in range(1, attempts + 1):
            if not path.name or request.spec.checkpoint is None:
                path = (
                    default_path(config.run.name) if out is None else Path(f"{out}-{attempt}" if attempt > 1 else out)
                )
                argv = [str(file), "--trial", config.policy.objective, "--out", str(path)]
            else:
                argv = ["--resume", str(path)]
            code = subprocess.run([*run, *argv], env=environment, check=False).returncode
            if code != FAILED_RUN:
                return code
            failed = f"attempt {attempt} of {attempts} failed"
            if not _has_trained(path, config.job.workers):
                say(make_console(stderr=True), f"{failed} before its first iteration: it would only fail again")
                return EXIT_FAILED
            say(make_console(stderr=True), failed)
    return EXIT_FAILED


def _has_trained(path: Path, workers: int) -> bool:
    """Return whether a worker of a run has finished an iteration."""
    try:
        return any(read_begun(trial, workers) for job in RunFolder.open(path).jobs for trial in job.trials)
    except KofnError:
        return False


def load(path: Path) -> dict[str, Any]:
    """Read a YAML file with an object. RequestError names the fault."""
    import yaml  # noqa: PLC0415  # needs kofn[jobs]
    from lightkube.models.meta_v1 import ObjectMeta  # noqa: PLC0415

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{path} must be one object in YAML, got: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise RequestError(f"{path} must be one object with metadata and spec")
    if unknown := sorted(document["metadata"].keys() - ObjectMeta.__annotations__.keys()):
        raise RequestError(f"{path}: metadata.{unknown[0]} must be a field of a Kubernetes object")
    return document


def checked(document: dict[str, Any]) -> TrainingRequest:
    """Return the request of a document after the operator's checks, except those that need the cluster. Raise
    RequestError or SplitError for a fault."""
    request = TrainingRequest.read(document)
    configuration(request)
    if request.spec.nodes:
        split(request.spec.accelerators, request.spec.capacities, request.spec.least_per_node)
    return request


@contextmanager
def cluster(namespace: str | None) -> Iterator["Client"]:
    """Yield a client of the cluster. Raise ClusterError, in a line, if the server refuses a call or does not answer."""
    import httpx2  # noqa: PLC0415
    from lightkube import Client  # noqa: PLC0415

    from kofn_jobs.api import ApiError, connection  # noqa: PLC0415

    try:
        with closing(Client(connection(), namespace=namespace)) as client:
            yield client
    except ApiError as error:
        raise ClusterError(f"the cluster refused: {error.status.message}") from error
    except httpx2.HTTPError as error:
        raise ClusterError(f"the cluster does not answer: {error}") from error


def _found(client: "Client", name: str, namespace: str) -> TrainingRequest:
    """Return the request of this name. Raise ClusterError if the cluster has no such request."""
    from kofn_jobs.api import NOT_FOUND, ApiError, Requests  # noqa: PLC0415

    try:
        return _read(client.get(Requests, name, namespace=namespace))
    except ApiError as error:
        if error.status.code != NOT_FOUND:
            raise
        raise ClusterError(f"no job {name} is in {namespace}: kofn jobs list has them") from error


def _read(found: Any) -> TrainingRequest:
    return TrainingRequest.read(found.to_dict())
