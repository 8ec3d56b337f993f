"""`kofn compare`: all methods to reduce gradients, with the same network, model, seeds and stragglers."""
