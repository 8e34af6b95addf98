"""XLA's collectives and FFTs."""
