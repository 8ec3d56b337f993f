"""Collectives behind one interface (communicator.py): switch, parameter server, ring, gloo and MPI."""
