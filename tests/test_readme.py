"""What the README says is what the project does."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from concurrent import futures

from tff_algos.algorithms import registry

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_README = (_ROOT / "README.md").read_text()


def test_the_table_of_algorithms_is_the_registry():
  rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.*) \| (.*) \|$", _README, re.MULTILINE)
  assert rows == [
    (row.name, row.builder.__name__, row.description, row.source)
    for row in registry.ALGORITHMS.values()
  ]


def _run(code: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
  folder.mkdir()
  return subprocess.run(
    [sys.executable, "-c", code],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=300,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
  )


def test_the_python_runs_as_printed_and_prints_the_same_again(tmp_path):
  blocks = re.findall(r"^```python\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)
  assert len(blocks) == 2
  codes = "\n".join(blocks), blocks[0]
  with futures.ThreadPoolExecutor() as pool:
    done, again = pool.map(_run, codes, (tmp_path / "once", tmp_path / "again"))
  assert done.returncode == 0, done.stderr
  losses = [float(line) for line in done.stdout.split()]
  # The labels are a linear function of the inputs: guessing costs ln 2 = 0.69.
  assert len(losses) == 4
  assert losses[0] < 0.4
  assert again.stdout.split() == done.stdout.split()[:1], again.stderr


def test_every_link_into_the_repository_leads_somewhere():
  for page in (_ROOT / "README.md", _ROOT / "CONTRIBUTING.md"):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
      assert (page.parent / target).exists(), f"{page.name} links to {target}"
