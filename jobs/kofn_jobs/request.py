"""A TrainingRequest with its status. The CRD's schema is made from these structs (crd.py)."""

import posixpath
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from kofn_common.wire.sizes import RACK_WORKERS_MAX
from kofn_jobs.errors import RequestError
from kofn_jobs.phases import Phase
from kofn_jobs.split import RING_LEAST, Capacity, NodePart

GROUP = "kofn.dev"
VERSION = "v1alpha1"
KIND = "TrainingRequest"
PLURAL = "trainingrequests"
API_VERSION = f"{GROUP}/{VERSION}"

SCRIPT_MAX = 262_144
"""Bytes of a script: a ConfigMap holds 1 MiB in all."""

RESERVED = ("/etc/kofn", "/etc/kofn-certs", "/var/lib/kofn", "/var/lib/kofn-checkpoints")
"""Folders of a worker's container: its files, its certificates, its state, the job's checkpoints."""

REQUESTER = f"{GROUP}/requester"
REQUESTER_GROUPS = f"{GROUP}/requester-groups"
REQUESTER_EXTRA = f"{GROUP}/requester-extra"
"""Annotations that only the admission webhook writes."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]

JobName = Annotated[str, Meta(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=40)]
"""A job's name. The pods' names, which are host names of up to 63 characters, begin with the job's name."""

WorkloadKind = Literal["auto", "JobSet", "MPIJob", "TrainJob"]


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object of the API: names in camel case, defaults left out."""


class RequestedNode(ApiStruct, frozen=True):
    """A node that may be used, and how many of its accelerators."""

    name: Annotated[str, Meta(min_length=1, max_length=253, description="The node's kubernetes.io/hostname.")]
    accelerators: Annotated[int, Meta(ge=1, le=1024)]


class Data(ApiStruct, frozen=True):
    """A volume with training data."""

    claim: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            max_length=253,
            description="A PersistentVolumeClaim of the namespace.",
        ),
    ]
    path: Annotated[
        str, Meta(pattern=r"^/[^:]+$", max_length=255, description="The folder of the claim at workers, read-only.")
    ] = "/data"


class CheckpointClaim(ApiStruct, frozen=True):
    """The claim that keeps checkpoints, and the number of iterations between two checkpoints."""

    claim: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            max_length=253,
            description="A PersistentVolumeClaim of the namespace that all workers' nodes may write. The claim stays"
            " when the request is deleted.",
        ),
    ]
    every: Annotated[
        int,
        Meta(ge=1, description="Iterations from one checkpoint to the next. A script makes its own checkpoints."),
    ]


class Elastic(ApiStruct, frozen=True):
    """The objective that chooses k, and the number of workers with which training begins."""

    objective: (
        Annotated[
            str,
            Meta(
                max_length=64,
                description="The objective that chooses k: progress, throughput, all, fixed:K, RULE:K. Without this"
                " field: the objective of config.",
            ),
        ]
        | None
    ) = None
    start_workers: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=RACK_WORKERS_MAX,
                description="The number of workers with which training begins. Without this field: config's number.",
            ),
        ]
        | None
    ) = None


RELEASE = version("kofn-jobs")
"""The tag of kofn's images."""

WORKER_IMAGE = f"kofn-worker:{RELEASE}"

TORCH_IMAGES = {"cpu": f"kofn-worker-torch:{RELEASE}", "nvidia.com/gpu": f"kofn-worker-torch-cuda:{RELEASE}"}
"""The images for scripts, by the resource for which the image's PyTorch is built."""


class TrainingSpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """The requested training."""

    accelerators: Annotated[
        int,
        Meta(ge=1, le=RACK_WORKERS_MAX, description="The accelerators of all nodes together; each is one worker."),
    ]
    image: Annotated[
        str,
        Meta(pattern=r"^\S*$", max_length=512, description="The workers' image. Without it, the operator chooses one."),
    ] = ""
    config: Annotated[str, Meta(max_length=65_536, description="A kofn configuration, TOML.")] = ""
    script: Annotated[
        str,
        Meta(
            max_length=SCRIPT_MAX,
            description="A Python script, which torchrun starts. Without it, workers train the workload of config.",
        ),
    ] = ""
    data: Data | None = None
    checkpoint: (
        Annotated[
            CheckpointClaim,
            Meta(
                description="Each attempt resumes at the newest checkpoint. Without this field, each attempt begins at"
                " the first iteration."
            ),
        ]
        | None
    ) = None
    resource: Annotated[
        str,
        Meta(
            pattern=r"^(cpu|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
            max_length=253,
            description="The Kubernetes resource that is an accelerator: an extended resource, or cpu.",
        ),
    ] = "nvidia.com/gpu"
    nodes: Annotated[
        tuple[RequestedNode, ...],
        Meta(max_length=64, description="The nodes, which are filled in this order. Without them: all ready nodes."),
    ] = ()
    least_per_node: Annotated[
        int, Meta(ge=1, le=RACK_WORKERS_MAX, description="The fewest accelerators that a used node gets.")
    ] = RING_LEAST
    elastic: Elastic = Elastic()
    workload: Annotated[
        WorkloadKind,
        Meta(
            description="The kind of object that runs the workers. auto: the first of JobSet, MPIJob and TrainJob that"
            " is installed and can run the parts."
        ),
    ] = "auto"
    backoff_limit: Annotated[int, Meta(ge=0, le=100, description="The number of retries.")] = 3
    backoff_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="The pause before the second attempt. It doubles for each further attempt, up to five minutes.",
        ),
    ] = 10
    active_deadline_seconds: (
        Annotated[int, Meta(ge=1, description="The longest time from the request's acceptance to its end.")] | None
    ) = None
    clean_pod_policy: Annotated[
        Literal["All", "Running", "None"],
        Meta(description="The pods to delete at the end: all (All), those that still run (Running), or none (None)."),
    ] = "All"

    @property
    def capacities(self) -> tuple[Capacity, ...]:
        """The accelerators of the nodes that the request names."""
        return tuple(Capacity(node.name, node.accelerators) for node in self.nodes)

    @property
    def worker_image(self) -> str:
        """The workers' image. Raise RequestError if a script has no image and kofn has none for the resource, or if the
        given image is kofn's image for another resource."""
        if not self.script:
            return self.image or WORKER_IMAGE
        if not self.image and self.resource not in TORCH_IMAGES:
            raise RequestError(f"spec.image must be given with a script on {self.resource}: {_torch_images()}")
        for resource, image in TORCH_IMAGES.items():
            if _name(self.image) == _name(image) and self.resource != resource:
                raise RequestError(
                    f"spec.resource must be {resource} with the image {self.image}, got {self.resource}:"
                    f" {_torch_images()}"
                )
        return self.image or TORCH_IMAGES[self.resource]


def _name(image: str) -> str:
    return image.rpartition("/")[2].partition(":")[0]


def _torch_images() -> str:
    return "; ".join(f"{_name(image)} is for {resource}" for resource, image in TORCH_IMAGES.items())


class StatusCondition(ApiStruct, frozen=True):
    """A condition, with the fields of Kubernetes' metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] = "1970-01-01T00:00:00Z"


class TrainingStatus(ApiStruct, frozen=True):
    """The status, which only the operator writes."""

    phase: Phase = "Pending"
    message: str = ""
    attempt: Annotated[int, Meta(ge=0, description="The number of the attempt; the first has number 1.")] = 0
    parts: tuple[NodePart, ...] = ()
    workload: str = ""
    ready: Annotated[str, Meta(description="The number of ready workers, and of all workers.")] = ""
    requester: str = ""
    k: int | None = None
    iteration: int | None = None
    late_workers: tuple[int, ...] = ()
    metric: Annotated[float, Meta(description="The metric of the parameters, such as the accuracy.")] | None = None
    next_attempt_time: Annotated[
        str,
        Meta(
            extra_json_schema={"format": "date-time"},
            description="The time of the next attempt, in the phase Retrying.",
        ),
    ] = ""
    conditions: tuple[StatusCondition, ...] = ()


class ObjectMeta(ApiStruct, frozen=True):
    """The fields of an object's metadata that the operator needs."""

    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class TrainingRequest(ApiStruct, frozen=True):
    """The whole object."""

    metadata: ObjectMeta
    spec: TrainingSpec
    status: TrainingStatus = TrainingStatus()
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def requester(self) -> str:
        """The name, at the API server, of the user who created the request; empty if unknown."""
        return self.metadata.annotations.get(REQUESTER, "")

    @classmethod
    def read(cls, document: Any) -> Self:
        """Read a JSON object. RequestError names the field."""
        try:
            request = msgspec.convert(document, cls)
            msgspec.convert(request.metadata.name, JobName)
        except msgspec.ValidationError as error:
            raise RequestError(f"TrainingRequest: {error}") from error
        request.check()
        return request

    def check(self) -> None:
        """Check rules that concern several fields."""
        if (self.api_version, self.kind) != (API_VERSION, KIND):
            raise RequestError(f"a request must be {API_VERSION} {KIND}, got {self.api_version} {self.kind}")
        if (size := len(self.spec.script.encode())) > SCRIPT_MAX:
            raise RequestError(f"spec.script must have at most {SCRIPT_MAX} bytes in UTF-8, got {size}")
        if self.spec.data is not None:
            path = PurePosixPath("/", posixpath.normpath(self.spec.data.path).lstrip("/"))
            for ours in RESERVED:
                if path.is_relative_to(ours) or PurePosixPath(ours).is_relative_to(path):
                    raise RequestError(f"spec.data.path must not overlap {ours}, got {self.spec.data.path!r}")
        assert self.spec.worker_image
        names = [node.name for node in self.spec.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RequestError(f"spec.nodes must name each node once, got {', '.join(twice)} twice")
        start = self.spec.elastic.start_workers
        if start is not None and start > self.spec.accelerators:
            raise RequestError(
                f"spec.elastic.startWorkers must be at most spec.accelerators ({self.spec.accelerators}), got {start}"
            )
