"""A laboratory: the machines on which `kofn run --lab` runs."""
