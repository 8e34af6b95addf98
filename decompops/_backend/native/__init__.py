"""Compiled kernels for the devices of one process, and what all compiled kernels need."""
