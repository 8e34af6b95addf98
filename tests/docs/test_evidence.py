"""Tests of the job scripts of docs/evidence."""

import re
import subprocess
from pathlib import Path

import pytest

from commands import parse, shown


FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_job_scripts_start_a_report(script, tmp_path):
    """Run a job script in Bash, with a fake `srun` that records its arguments, and parse the recorded command."""
    subprocess.run(["bash", "-n", script], check=True)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NTASKS": "128"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    python, *words = done.stdout.splitlines()
    assert (python, words[:3]) == ("python", ["-m", "decompops", "report"])
    options = parse(words[1:])
    assert (options.strong, options.minutes) == (1024, 10)
    assert re.fullmatch(r"(cpu-128-ranks|gpu-128-gpus)", options.name)
    # The time limit of the job must be longer than the time limit of the report.
    hours, minutes, _ = re.search(r"#SBATCH --time=(\d+):(\d+):(\d+)", script.read_text()).groups()
    assert 60 * int(hours) + int(minutes) > options.minutes
    study = parse(shown(script.read_text())[0])
    assert Path(f"{options.name}.json").match(str(study.files[0]))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_commands_in_the_head_of_a_job_script_are_valid(script):
    lines = [line.removeprefix("#   ") for line in script.read_text().splitlines() if line.startswith("#   ")]
    assert len(lines) == 2
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)
    assert f"{script.name}; done" in lines[0]
