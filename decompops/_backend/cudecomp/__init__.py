"""NVIDIA's cuDecomp."""
