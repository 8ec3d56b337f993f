"""p4c's BMv2 JSON to native code.

JSON --reader--> Program --codegen--> C --compile--> library

program, reader, reader_*, expressions        the typed model and how it is read
layout, bounds, lowering, kernels, operators  expressions to C (operators: a table of rules)
primitives, hashing, codec, matching          statements, checksums, header bytes, tables (primitives: a table)
headers, keeping                              statements on whole headers; what is read from invalid ones
crc, csum16, messages, reports                hash algorithms; messages for the log and assertions
parsing, pipelines, process, liveness         parser, controls, the way of a packet and its copies
copies                                        clones, resubmitted and recirculated packets (with runtime/copies.h)
block, codegen                                the C file
tracing                                       calls that say what a program does, P4 lines beside the C
compile                                       cc, once for each text
"""
