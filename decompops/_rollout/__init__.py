"""Many steps in one compiled program, and derivatives of it within a given memory."""
