"""A broker raises its soft limit of open files, which the shell may have set, to the hard limit."""

import subprocess
import sys

# The program runs in a separate process, because the lowered limit must not apply to other tests.
PROGRAM = """
import resource
from tidelog.cli.surroundings import raise_file_limit

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
raise_file_limit()
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("(300, 300)\n", 0), done.stderr
