"""A rank of a job on two hosts that differ. test_differing.py starts the ranks and reads their output.

    python differing.py CLOCK FOLDER

On host2, the rank uses another FFT library and fewer features of its CPU, and its clocks are a day ahead. The preloaded
library CLOCK changes the wall clock; a time namespace changes the monotonic clock, if the machine allows one. The rank
then runs operators.py.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path


DAY = 86400


def main() -> None:
    clock, folder = sys.argv[1:]
    command = [sys.executable, str(Path(__file__).with_name("operators.py")), "mpi", folder]
    if socket.gethostname() == "host2":
        later = ["unshare", "--time", "--monotonic", str(DAY), "--fork", "--kill-child"]
        if subprocess.run([*later, "true"], capture_output=True).returncode == 0:
            command = [*later, *command]
        os.environ |= {"DECOMPOPS_FFT": "ducc", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2", "LD_PRELOAD": clock}
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
