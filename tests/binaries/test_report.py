"""`binaries/report.py`: the page it writes, and bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest


def _program(*args):
  command = [sys.executable, "binaries/report.py", *args]
  return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_program_writes_the_page(write_run, tmp_path):
  write_run(tmp_path / "all/a")
  write_run(tmp_path / "all/b", "fedgg")
  out = tmp_path / "report.html"
  done = _program(f"--runs={tmp_path}/all", f"--out={out}", "--title=A & B")
  assert done.returncode == 0, done.stderr
  page = out.read_text(encoding="utf-8")
  data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
  assert data["title"] == "A & B" and data["made"].startswith("2 runs on 1 task, ")


@pytest.mark.parametrize(
  "wrong, status, said",
  [
    ("--runs={tmp}/nothing", 2, "nothing holds no run"),
    ("--out={tmp}/a", 2, "is a folder"),
    ("--out=/dev/full", 1, "No space left"),
  ],
)
def test_bad_input_and_a_full_disk_get_one_sentence_and_nothing_is_written(
  write_run, fork_program, tmp_path, wrong, status, said
):
  run = write_run(tmp_path / "a")
  before = sorted(tmp_path.rglob("*"))
  args = [f"--runs={run}", f"--out={tmp_path}/a.html"]
  done = fork_program("report.py", *args, wrong.format(tmp=tmp_path), cwd=tmp_path)
  assert done.status == status
  assert said in done.err and len(done.err.strip().split("\n")) == 1
  assert sorted(tmp_path.rglob("*")) == before


def test_what_shows_runs_imports_no_tensorflow():
  code = (
    "import sys; from binaries import compare, report; print('tensorflow' in sys.modules)"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert done.stdout == "False\n", done.stderr
