"""Python runs this file when a rank starts (`mpiexec.run`): a rank that hangs prints where, before its test ends."""

import faulthandler
import os


if seconds := os.environ.get("STACKS_AFTER"):
    faulthandler.dump_traceback_later(float(seconds))
