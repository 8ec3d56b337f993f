"""Schedules: the order of weight gradients, the pieces in which they leave, and what a forward pass waits for."""
