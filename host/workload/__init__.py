"""What a worker computes: model, data, replica, injected stragglers."""
