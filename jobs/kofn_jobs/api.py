"""The connection to the API server, and the types of its documents, with lightkube.

The server's address and the credentials come from the pod's service account; outside a pod, from the file that
KUBECONFIG names, or from ~/.kube/config.
"""

from typing import Any

from lightkube import codecs
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.authorization_v1 import SubjectAccessReview
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret, Service

from kofn_jobs.errors import ClusterError
from kofn_jobs.kinds import KINDS, Role
from kofn_jobs.request import GROUP, KIND, PLURAL, VERSION

__all__ = [
    "CONFLICT",
    "NOT_FOUND",
    "ApiError",
    "Lease",
    "Pod",
    "Requests",
    "Secret",
    "SubjectAccessReview",
    "connection",
    "decoded",
    "resource",
]

NOT_FOUND, CONFLICT = 404, 409

Requests: Any = create_namespaced_resource(GROUP, VERSION, KIND, PLURAL)

_WORKLOADS: dict[str, Any] = {
    kind: create_namespaced_resource(names.group, names.version, kind, names.plural) for kind, names in KINDS.items()
}
_MADE: dict[Role, Any] = {
    Role.CONFIG: ConfigMap,
    Role.SECRET: Secret,
    Role.SERVICE: Service,
    Role.CONTROL: Pod,
}


def resource(role: Role, workload: str) -> Any:
    """Return the type of an object of a request."""
    return _WORKLOADS[workload] if role is Role.WORKLOAD else _MADE[role]


def decoded(document: dict[str, Any]) -> Any:
    """Return the document as lightkube's type."""
    return codecs.from_dict(document)


def connection() -> SingleConfig:
    """Return the connection of the current context. Raise ClusterError if there is none."""
    try:
        found = KubeConfig.from_env().get()
    except (ConfigError, OSError) as error:
        raise ClusterError(f"no cluster is known: KUBECONFIG or ~/.kube/config names one ({error})") from error
    assert found is not None
    return found
