"""The executable reference: a slow interpreter of the same model that the compiler reads, meant to be obviously right.

What a program means is written here as plainly as possible: integers of any size, lists, dictionaries, one packet at a
time.  It is written from what BMv2 does (behavioral-model's bm_sim and simple_switch), shares nothing with the code
generator but the model, and leaves to `state.tables` what an entry may be.

engine, controls                       a switch as the control plane sees it, and what it changes
pipeline                               parser, ingress, queues, egress, deparser, and copies of packets
parser, tables, profiles               their rules
actions, header_statements, state_statements   what each primitive does; `call` is what they act on
expressions, hashes, meters, packet    values; header instances and a packet's bytes
"""

from tests.switch.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
