"""How XLA compiles in tests."""

# Most of the time of the tests goes into compiling small programs that run once or twice. XLA's older emitters of
# loops take about half the time of those that it uses by default. Examples and documented scripts, which run as users
# run them, keep the default.
FLAGS = "--xla_cpu_use_fusion_emitters=false"
