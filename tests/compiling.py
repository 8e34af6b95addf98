"""How XLA compiles in tests."""

from importlib.metadata import version


# Most of the time of the tests goes into compiling small programs that run once or twice. XLA's older emitters of
# loops take about half the time of those that it uses by default. Examples and documented scripts, which run as users
# run them, keep the default. From JAX 0.11 on XLA has no such flag, and ends a process that sets it.
FLAGS = "--xla_cpu_use_fusion_emitters=false" if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11) else ""
