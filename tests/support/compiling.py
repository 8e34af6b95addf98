"""The compiler flags of XLA in tests, and the warnings that are errors."""

from importlib.metadata import version


_JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))
# Tests spend most of their time compiling small programs that run once or twice. Only one run of an example compiles as
# users do. By default, LLVM compiles a program in up to 32 parts on several threads, which takes a quarter more time in
# all. The test run has a process for each core, so it compiles one part.
FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if _JAXLIB < (0, 11):
    # XLA's older loop emitters compile in about half the time of the default emitters. Later versions have none, and
    # abort a process that sets this flag.
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
elif _JAXLIB >= (0, 12):
    FLAGS += " --xla_cpu_opt_preset=FAST_COMPILE"  # A tenth less time.

# The options of Python where a warning is an error. One process may read a compiled program while another one writes
# it. JAX then warns, and compiles the program again.
WARNINGS = ["-W", "error", "-W", "ignore:Error reading persistent compilation cache entry:UserWarning"]
