"""The executable reference: a slow interpreter of the compiler's program model, meant to be obviously right.

It states a program's meaning as plainly as possible: integers of any size, lists, dictionaries, one packet at a time.
It follows BMv2's behaviour (behavioral-model's bm_sim and simple_switch), shares nothing with the code generator but
the model, and leaves the checks of entries to `state.tables`.

engine, controls                       a switch as the control plane sees and changes it
pipeline                               parser, ingress, queues, egress, deparser, and copies of packets
parser, tables, profiles               their rules
actions, header_statements, state_statements   the primitives; `call` holds their operands
expressions, hashes, meters, packet    values; header instances and a packet's bytes
"""

from tests.switch.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
