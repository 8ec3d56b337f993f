"""What model.stragglers names: a file each, of that name; workload/straggler_source.py has what one is."""
