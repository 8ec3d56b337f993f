"""The P4Runtime server: a thin adapter that keeps no P4 state itself.

server, service                        gRPC: the server and its calls
streams, session, arbitration          the clients, and the primary among them
pipeline, p4info                       the program as P4Runtime names it
entities, tables, match, arrays, groups   Write and Read
digests, packet_io, uplink             messages from the data plane
p4data, bytestring, refusal            values, canonical bytes, errors
"""
