"""A P4 program, typed: the model that reader, code generator and reference share."""
