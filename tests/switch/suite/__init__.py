"""Packet scripts over the embedded switch, its reference and BMv2."""
