"""The decomposition of a grid, the layouts and structures of arrays, and the primitive that runs plans."""
