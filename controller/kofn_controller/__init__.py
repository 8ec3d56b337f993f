"""Measure each worker's blocking, model it, choose k, push it to the switch and to the workers.

    measure -> model -> choose -> push        (docs/explanation/control.md)

`policy.control_loop` holds the whole loop without I/O or clock. `job.session` and `job.service` connect it to workers
by gRPC, `p4runtime.switch_link` to the switch by P4Runtime.
"""

from kofn_common import check_name

check_name(__name__)
