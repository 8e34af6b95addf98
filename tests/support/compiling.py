"""The compiler flags of XLA in tests."""

from importlib.metadata import version


# Tests spend most of their time compiling small programs that run once or twice. With this flag, XLA uses its older
# loop emitters, which compile in about half the time of the default emitters. The tests of examples and of scripts in
# the documentation use the default, as users do. In JAX 0.11 and later, XLA aborts a process that sets this flag.
FLAGS = "--xla_cpu_use_fusion_emitters=false" if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11) else ""
