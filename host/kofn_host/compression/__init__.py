"""Gradients to lanes and back: codecs, plan, and the ledger."""
