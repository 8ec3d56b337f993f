"""A P4 program, typed: the model that reader and code generator share."""
