"""A worker's computation: model, data, replica, injected stragglers."""
