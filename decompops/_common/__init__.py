"""What every other part of the package uses: checks, meshes and shardings, and workarounds for versions of JAX."""
