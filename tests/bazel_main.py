"""What every py_test of BUILD runs: pytest on the file that is its one argument."""

from __future__ import annotations

import os
import sys

import pytest


def main(path: str) -> int:
  """Runs a test file; returns the exit status."""
  # Bazel runs files beside each other itself.
  options = ["--numprocesses=0", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
  if "XML_OUTPUT_FILE" in os.environ:  # Where Bazel looks for the results.
    options.append(f"--junitxml={os.environ['XML_OUTPUT_FILE']}")
  status = pytest.main([*options, path])
  # A file of which all tests are deselected has passed.
  return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1]))
