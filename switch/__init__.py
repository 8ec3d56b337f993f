"""The embedded switch: p4c's BMv2 JSON becomes C, the C becomes native code, P4Runtime configures it.

JSON --compiler/--> C --cc--> library --native, loaded--> engine <--p4runtime/-- clients
                                 |
                             runtime/: the fixed C part: ports, packet thread, tables, rings

engine      the running switch as Python sees it: its program and ports; its other methods by what they are about:
            `table_controls`, `cell_controls` (meters, counters, registers, value sets), `copy_controls` (multicast
            groups, clone sessions), `outcomes` (digests, messages, packet-ins), all upon `controls`
loaded      the running program; `tables`, `entries`, `value_sets` what is in it
ports       its interfaces or the files in their place, captures, injected faults, counts
native      the C functions of runtime/: core (packets, groups), ports (packet thread), instance (tables, arrays), ring,
            capture (pcap files), trace (ways as text)
executor    what native engine and `reference/` have in common: the latter interprets the same program, slowly
errors      what can go wrong, as one tree
options     the command line of simple_switch_grpc; `inside` its part for looking inside
replay      packets from files instead of interfaces; `counts` what went through, in words
"""
