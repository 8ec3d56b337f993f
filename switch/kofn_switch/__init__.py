"""The embedded switch: p4c's BMv2 JSON becomes C, the C becomes native code, P4Runtime configures it.

JSON --compiler/--> C --cc--> library --native.py--> engine <--p4runtime/-- clients
                                 |
                             runtime/: the fixed C part: ports, packet thread, tables, rings

cli/         the command line, simple_switch_grpc's flags
compiler/    JSON to C
engine/      the running switch: program, ports, packets
state/       the control plane's data: entries, profiles, value sets, meters
p4runtime/   the P4Runtime server
runtime/     the fixed C part; native.py calls it through ctypes
errors.py    the exceptions, as one tree
"""

from kofn_common import check_name

check_name(__name__)
