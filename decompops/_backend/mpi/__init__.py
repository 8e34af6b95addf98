"""Compiled kernels over MPI, and the start and the end of ranks."""
