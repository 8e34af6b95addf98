"""Python runs this file when a process of a test starts (`mpiexec`, `processes`)."""

import faulthandler
import gc
import os


# Python's garbage collector would take a tenth of the time, because JAX makes millions of short-lived objects.
gc.set_threshold(50_000, 20, 20)

# A rank that hangs prints where it is, before its test ends.
if seconds := os.environ.get("STACKS_AFTER"):
    faulthandler.dump_traceback_later(float(seconds))
