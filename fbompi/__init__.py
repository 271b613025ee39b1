"""Federated bilevel optimization, run for real on MPI."""

__version__ = "0.1.0"
