"""The P4Runtime server: a thin adapter that keeps no P4 state of its own.

server, service                        gRPC: the process's end and the calls
streams, session, arbitration          who is connected and who is primary
pipeline, p4info                       the program as P4Runtime names it
entities, tables, match, arrays, groups   Write and Read
digests, packet_io, uplink             what the data plane sends up
p4data, bytestring, refusal            values, canonical bytes, errors
"""
