"""Training jobs on Kubernetes: a TrainingRequest becomes workers on nodes, a switch and a controller, until their end.

    request.py      the request and its status: structs, from which the CRD is made (crd.py)
    phases.py       the phases of a request, their order, and which are final
    split.py        distributes accelerators over nodes
    lifecycle.py    decides the next actions; no I/O
    manifests.py    the objects that are made; workloads.py makes the workers' objects
    operator/       carries the actions out with kopf; needs kofn[jobs]

The package knows nothing of packets: pods run `kofn` commands.
"""

from kofn_common import check_name

check_name(__name__)
