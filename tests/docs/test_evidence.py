"""Tests of the job scripts and the commands in docs/evidence."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from decompops import cli
from decompops._report import command


FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
CALL = ["python", "-m", "decompops"]


@pytest.fixture
def parsed(monkeypatch):
    """Return a function that parses a command `python -m decompops report`, without running a report."""
    found = []
    monkeypatch.setattr(command, "_run", lambda parser, options: found.append(options) or 0)

    def parse(words: list[str]):
        assert words[:4] == [*CALL, "report"]
        assert cli.main(words[3:]) == 0
        return found.pop()

    return parse


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_job_scripts_start_a_report(script, parsed, tmp_path):
    """Run a job script in Bash and parse the command that it starts, which a fake `srun` records."""
    subprocess.run(["bash", "-n", script], check=True)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NTASKS": "128"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    options = parsed(done.stdout.splitlines())
    assert (options.strong, options.minutes) == (1024, 10)
    assert re.fullmatch(r"(cpu-128-ranks|gpu-128-gpus)", options.name)
    # The time limit of the job must be longer than the time limit of the report.
    hours, minutes, _ = re.search(r"#SBATCH --time=(\d+):(\d+):(\d+)", script.read_text()).groups()
    assert 60 * int(hours) + int(minutes) > options.minutes
    study = parsed(commands(script.read_text())[0])
    assert Path(f"{options.name}.json").match(str(study.files[0]))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_commands_in_the_head_of_a_job_script_are_valid(script):
    lines = [line.removeprefix("#   ") for line in script.read_text().splitlines() if line.startswith("#   ")]
    assert len(lines) == 2
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)
    assert f"{script.name}; done" in lines[0]


def test_commands_of_the_page(parsed):
    found = commands((FOLDER / "index.md").read_text())
    assert len(found) >= 5
    for words in found:
        parsed(words)


def commands(text: str) -> list[list[str]]:
    """Return the words of each shell line that starts a report, without the launcher."""
    lines = re.findall(r"^(?:#  +)?(?:[a-z]+ -\S+ \S* ?)?(python -m decompops report\b.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]
