"""What tests of train.py share: settings, what a run leaves, and a process of its own."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import subprocess
import sys
import textwrap
import time
import zipfile

import h5py
import numpy as np
from programs import ROOT, Done, environment, processes_of

# A small setting of the default task.
SMALL = (
  "--num_clients=8",
  "--clients_per_round=3",
  "--epochs=1",
  "--partition=dirichlet:beta=0.5,min_size=20",
  "--seed=3",
)


def metrics(run_dir: pathlib.Path) -> list[dict[str, str]]:
  """The whole rows of metrics.csv."""
  path = run_dir / "metrics.csv"
  if not path.exists():
    return []
  lines = path.read_text().splitlines(keepends=True)
  return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def without_seconds(lines: list[dict[str, str]]) -> list[dict[str, str]]:
  return [{k: v for k, v in line.items() if "seconds" not in k} for line in lines]


def read_json(path: pathlib.Path):
  return json.loads(path.read_text())


def keras_weights(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a Keras file, by their places in it."""
  found = {}

  def visit(name, item):
    if isinstance(item, h5py.Dataset):
      found[name] = item[()]

  with zipfile.ZipFile(path) as archive:
    content = io.BytesIO(archive.read("model.weights.h5"))
  with h5py.File(content) as file:
    file.visititems(visit)
  return found


def tree(folder: pathlib.Path) -> set[str]:
  return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def place(folder: pathlib.Path, name: str = "run") -> tuple[pathlib.Path, list[str]]:
  """A run's folder, and the flags that keep all it writes in `folder`."""
  run_dir = folder / name
  return run_dir, [f"--run_dir={run_dir}", f"--cache_dir={folder / 'cache'}"]


def at_round(number: int, code: str) -> str:
  """For `before` of a fork: has it run code when it has shown a round."""
  return textwrap.dedent(
    """
    import os, signal, time
    from experiments import progress

    show = progress.Progress.update

    def update(self, record):
      show(self, record)
      if record["round"] == {number}:
        {code}

    progress.Progress.update = update
    """
  ).format(number=number, code=code)


def assert_refused(done: Done, *words: str):
  """Status 2, no result on standard output and one sentence that says these words."""
  assert "Traceback" not in done.err, done.err
  assert done.status == 2, done
  assert re.fullmatch(r"(\S+ on \S+: loading TensorFlow and data\n)?", done.out), done
  assert len(done.err.splitlines()) == 1, done.err
  assert done.err.endswith("\n")
  for word in words:
    assert word in done.err, done.err


class Process:
  """train.py in a process, and process group, of its own; files take its output."""

  def __init__(self, *flags: str, cwd: pathlib.Path, home: pathlib.Path):
    self._files = [home / "process.out", home / "process.err"]
    with open(self._files[0], "w") as out, open(self._files[1], "w") as err:
      self.popen = subprocess.Popen(
        [sys.executable, str(ROOT / "binaries/train.py"), *flags],
        cwd=cwd,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
      )

  def end(self, seconds: float = 400) -> Done:
    try:
      status = self.popen.wait(seconds)
    except subprocess.TimeoutExpired:
      self.popen.kill()
      self.popen.wait()
      raise
    return Done(status, *(path.read_text() for path in self._files))

  def wait_for_rounds(self, run_dir: pathlib.Path, number: int):
    deadline = time.monotonic() + 400
    while len(metrics(run_dir)) < number:
      assert self.popen.poll() is None, self.end()
      assert time.monotonic() < deadline, self.end(0)
      time.sleep(0.02)

  def workers(self) -> set[int]:
    """Ids of TFF's workers that run in its session, whether or not it still does."""
    processes = processes_of(self.popen.pid)
    return {number for number, command in processes.items() if "worker_binary" in command}
