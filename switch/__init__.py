"""The embedded switch: p4c's BMv2 JSON becomes C, the C becomes native code, P4Runtime configures it.

    JSON --reader--> Program --codegen--> C --compile--> library --loaded--> Engine <-- p4runtime

    program, reader, reader_tables, expressions   the typed model and how it is read
    layout, bounds, lowering, kernels, operators  expressions to C (operators: a table of rules)
    primitives, hashing, codec, matching          statements, checksums, header bytes, tables (primitives: a table)
    parsing, pipelines, process, liveness         parser, controls, the way of a packet and its copies
    block, codegen                                the C file
    compile, native, loaded, tables, engine       the running switch
    runtime/                                      the fixed C part: ports, packet thread, tables, rings
"""
