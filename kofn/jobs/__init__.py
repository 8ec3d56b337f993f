"""Training jobs on Kubernetes: a TrainingRequest becomes workers on nodes, a switch and a controller, and their end.

    request.py      what is asked for, and how it stands: structs, from which the CRD is made (crd.py)
    split.py        so many accelerators on nodes
    lifecycle.py    what is to be done next; no I/O
    manifests.py    the objects that are made, workloads/ the workers' kind
    operator/       carries it out with kopf; needs kofn[jobs]

It knows nothing of packets: what runs in a pod is a `kofn` command.
"""
