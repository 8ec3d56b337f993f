"""A P4 program, typed: what reader and code generator have in common."""
