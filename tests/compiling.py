"""The compiler flags of XLA in tests."""

from importlib.metadata import version


# Tests spend most of their time in compiling small programs that run once or twice. XLA's older loop emitters compile
# in about half the time of the default emitters. Examples and documented scripts keep the default, because users run
# them so. In JAX 0.11 and later, XLA has no such flag and ends a process that sets it.
FLAGS = "--xla_cpu_use_fusion_emitters=false" if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11) else ""
