"""A P4 program, typed: what reader, code generator and reference have in common."""
