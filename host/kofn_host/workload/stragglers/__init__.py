"""The values of model.stragglers, one file each; workload/straggler_source.py has the interface."""
