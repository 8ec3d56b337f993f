"""What model.workload names: a file each, of that name; workload/workload.py has what one is."""
