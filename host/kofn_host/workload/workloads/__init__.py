"""The values of model.workload, one file each; workload/workload.py has the interface."""
