"""What is known of each worker: measurements, and the model of its block times."""
