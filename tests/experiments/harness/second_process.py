"""A second process of a test: it does one thing, tells that it has, and waits for a line."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def second_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code until it has printed a line; at the end it is let go on, by a line, and waited for."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline(), "the second process has failed"
        yield process
        if process.poll() is None:
            process.communicate("go on\n")
