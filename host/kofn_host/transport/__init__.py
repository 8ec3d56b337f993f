"""Packets between the protocol and UDP sockets."""
