"""Collectives behind one interface (communicator.py): a ring, gloo, MPI, and what switch and parameter server have."""
