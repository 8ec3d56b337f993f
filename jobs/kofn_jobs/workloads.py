"""The objects that run the workers: a JobSet for parts of any size, an MPIJob or a TrainJob for equal parts.

A JobSet makes one Job for each part, on the part's node. An MPIJob or a TrainJob has one kind of pod, spread evenly
over the nodes.
"""

from itertools import accumulate

from kofn_jobs.kinds import KINDS, Role
from kofn_jobs.manifests import (
    WORKER,
    Document,
    labels,
    metadata,
    worker_command,
    worker_template,
)
from kofn_jobs.request import TrainingRequest
from kofn_jobs.split import NodePart

RUNTIME = "kofn"
"""The ClusterTrainingRuntime of jobs/deploy/base/runtime.yaml."""

HOSTNAME = "kubernetes.io/hostname"


def workload(request: TrainingRequest, attempt: int) -> Document:
    """Return an object of the chosen kind."""
    return MAKERS[request.status.workload](request, attempt)


def job_set(request: TrainingRequest, attempt: int) -> Document:
    """Return a Job for each part; ranks continue from one Job to the next, so that a node's workers are neighbours in a
    ring."""
    counts = [part.accelerators for part in request.status.parts]
    firsts = [0, *accumulate(counts)]
    jobs = [
        _replicated(request, attempt, number, first, part)
        for number, (first, part) in enumerate(zip(firsts, request.status.parts, strict=False))
    ]
    return {
        "apiVersion": KINDS["JobSet"].api_version,
        "kind": "JobSet",
        "metadata": metadata(request, Role.WORKLOAD, attempt),
        "spec": {"replicatedJobs": jobs, "successPolicy": {"operator": "All"}, "failurePolicy": {"maxRestarts": 0}},
    }


def _replicated(request: TrainingRequest, attempt: int, number: int, first: int, part: NodePart) -> Document:
    rank, ranks = f"$(({first} + JOB_COMPLETION_INDEX))", range(first, first + part.accelerators)
    job = {
        "parallelism": part.accelerators,
        "completions": part.accelerators,
        "completionMode": "Indexed",
        "template": worker_template(request, attempt, rank, {"nodeSelector": {HOSTNAME: part.node}}, ranks),
    }
    return {"name": f"node-{number}", "replicas": 1, "template": {"spec": job}}


def mpi_job(request: TrainingRequest, attempt: int) -> Document:
    """Return a job whose workers mpirun starts: the image needs an SSH server and Open MPI."""
    count = request.spec.accelerators
    workers = worker_template(request, attempt, "$OMPI_COMM_WORLD_RANK", _evenly(request, attempt))
    workers["spec"]["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
    workers["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 22}, "periodSeconds": 2}
    del workers["spec"]["restartPolicy"]  # the MPI operator sets the pods' restart policy
    run = ["mpirun", "--allow-run-as-root", "-n", str(count), "--bind-to", "none"]
    ours = "POD_IP=$(hostname -i); " + worker_command(request, "$OMPI_COMM_WORLD_RANK")
    launcher = {"name": "launcher", "image": request.spec.worker_image, "command": [*run, "sh", "-c", ours]}
    return {
        "apiVersion": KINDS["MPIJob"].api_version,
        "kind": "MPIJob",
        "metadata": metadata(request, Role.WORKLOAD, attempt),
        "spec": {
            "slotsPerWorker": 1,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
                "Worker": {"replicas": count, "template": workers},
            },
        },
    }


def train_job(request: TrainingRequest, attempt: int) -> Document:
    """Return a job of the runtime `kofn`, with the request's volumes, nodes and gate."""
    ranks = range(request.spec.accelerators)
    template = worker_template(request, attempt, "$JOB_COMPLETION_INDEX", _nodes(request), ranks)
    container, pod = template["spec"]["containers"][0], template["spec"]
    patch = {
        "affinity": pod["affinity"],
        "schedulingGates": pod["schedulingGates"],
        "volumes": pod["volumes"],
        "containers": [{"name": "node", "volumeMounts": container["volumeMounts"]}],
    }
    node = {"name": "node", "template": {"spec": {"template": {"metadata": template["metadata"], "spec": patch}}}}
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "env": container["env"],
        "numNodes": request.spec.accelerators,
        "numProcPerNode": 1,
        "resourcesPerNode": container["resources"],
    }
    return {
        "apiVersion": KINDS["TrainJob"].api_version,
        "kind": "TrainJob",
        "metadata": metadata(request, Role.WORKLOAD, attempt),
        "spec": {
            "runtimeRef": {"name": RUNTIME, "kind": "ClusterTrainingRuntime", "apiGroup": KINDS["TrainJob"].group},
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": "kofn.dev/operator",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        },
    }


def _nodes(request: TrainingRequest) -> Document:
    """Require the nodes of the parts."""
    names = [part.node for part in request.status.parts]
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def _evenly(request: TrainingRequest, attempt: int) -> Document:
    """Require the nodes of the parts, and spread pods evenly over these nodes."""
    spread = {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels(request, attempt, WORKER)},
    }
    return _nodes(request) | {"topologySpreadConstraints": [spread]}


MAKERS = {"JobSet": job_set, "MPIJob": mpi_job, "TrainJob": train_job}
