"""The embedded switch: p4c's BMv2 JSON becomes C, the C becomes native code, P4Runtime configures it."""
