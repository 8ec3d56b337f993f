"""Whole trainings in PyTorch that kofn itself starts, by torchrun."""
