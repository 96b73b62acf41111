"""Programs of binaries/ as a user runs them, and in forks of one process.

A program that imports TFF takes some seconds to start. What does not need a process
of its own runs in a fork of one that has imported everything and done nothing.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]

_SERVER = """
  import atexit, gc, json, os, runpy, signal, sys, time, traceback

  gc.disable()  # While there is nothing but imports.
  (root,) = sys.argv[1:]
  sys.path[:1] = [root]
  from tff_algos import preflight
  preflight.quiet([])
  import matplotlib.backends.backend_agg, matplotlib.figure, matplotlib.layout_engine
  import tensorflow_datasets
  from experiments import importing, runner, splits
  from experiments.attacks import inversion
  from experiments.forgetting import program
  from experiments.run_folder import provenance
  from tasks.datasets import digits, picture_folder, tfds_images
  from tff_algos.algorithms import fed_avg, fed_gg, fed_sgd, scaffold
  from tff_algos.models import keras

  # The source may be edited while tests run, of which a run that goes on would warn.
  provenance.git_commit = lambda: "0123abc"

  # Pictures are looked at in the tests of what draws them; here they are small and plain,
  # as drawing them well takes a tenth of a short run.
  figure = matplotlib.figure.Figure
  save = figure.savefig
  figure.savefig = lambda *args, **options: save(*args, **{**options, "dpi": 20})
  matplotlib.layout_engine.ConstrainedLayoutEngine.execute = lambda *args: None

  def save_nothing(picture, file, **options):
    # Those of train.py, which a run in a process of its own draws.
    file.write(b"PNG")

  def run(request):
    os.setsid()  # What it sends to its process group is for itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = os.path.join(root, "binaries", request["program"])
    sys.path[:1] = [os.path.dirname(program), *request["paths"]]
    os.chdir(request["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
      os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = [program, *request["argv"]]
    if request["program"] == "train.py":
      figure.savefig = save_nothing
    try:
      exec(request["before"], {})
      runpy.run_path(program, run_name="__main__")
      status = 0
    except SystemExit as end:
      status = 0 if end.code is None else end.code
    except BaseException:
      traceback.print_exc()
      status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

  def wait(child, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
      done, status = os.waitpid(child, os.WNOHANG)
      if done:
        return os.waitstatus_to_exitcode(status)
      time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "did not end"

  gc.collect()
  gc.freeze()  # Or each fork would copy what it only looks at.
  gc.set_threshold(10_000, 10, 10)
  gc.enable()
  answers = os.fdopen(os.dup(1), "w")
  for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
      run(request)
    answers.write(json.dumps(wait(child, request["seconds"])) + chr(10))
    answers.flush()
"""


class Done(NamedTuple):
  """A run of a program that has ended."""

  status: int
  out: str
  err: str


def environment(home: pathlib.Path) -> dict[str, str]:
  """In which a program has a home of its own and no network."""
  env = {**os.environ, "HOME": str(home), "PYTHONPATH": ""}
  # Importing TensorFlow sets it in this process; a program is to be silent by itself.
  env.pop("TF_CPP_MIN_LOG_LEVEL", None)
  # Nothing is downloaded, whether or not there is a network.
  unreachable = "http://127.0.0.1:9"
  return {**env, "http_proxy": unreachable, "https_proxy": unreachable, "no_proxy": ""}


def processes_of(session: int) -> dict[int, str]:
  """Id and command of the session's processes that run."""
  found = {}
  for folder in glob.glob("/proc/[0-9]*"):
    try:
      stat = pathlib.Path(folder, "stat").read_text()
      command = pathlib.Path(folder, "cmdline").read_text()
    except OSError:
      continue  # It has just ended.
    state, _, _, its = stat.rsplit(")", 1)[1].split()[:4]
    if int(its) == session and state != "Z":
      found[int(os.path.basename(folder))] = command
  return found


def wait_for(found: Callable[[], object], seconds: float = 300) -> None:
  """Waits until what it calls is true."""
  deadline = time.monotonic() + seconds
  while not found():
    assert time.monotonic() < deadline
    time.sleep(0.02)


class ForkServer:
  """A process that has imported everything and runs programs in forks of itself."""

  def __init__(self, folder: pathlib.Path):
    self._out, self._err = folder / "out", folder / "err"
    self._process = subprocess.Popen(
      [sys.executable, "-c", textwrap.dedent(_SERVER), str(ROOT)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
      # oneDNN looks up each operation of each graph, in every fork anew: a tenth of a
      # short run.
      env={**environment(folder), "TF_ENABLE_ONEDNN_OPTS": "0"},
    )

  def __call__(
    self,
    program: str,
    *flags: str,
    cwd: pathlib.Path,
    paths: Sequence[str] = (),
    before: str = "",
  ) -> Done:
    """Runs a program of binaries/ as `__main__`, to its end.

    Args:
      program: Its file's name.
      *flags: Its command line.
      cwd: The folder it is run in.
      paths: What PYTHONPATH would hold.
      before: Python that is run before it, to change what the program is made of.
    """
    assert self._process.stdin is not None and self._process.stdout is not None
    files = {"out": str(self._out), "err": str(self._err)}
    place = {"program": program, "paths": list(paths), "cwd": str(cwd)}
    request = {**place, **files, "argv": flags, "before": before, "seconds": 400}
    self._process.stdin.write(json.dumps(request) + "\n")
    self._process.stdin.flush()
    answer = self._process.stdout.readline()
    assert answer, "the process that forks has ended"
    return Done(json.loads(answer), self._out.read_text(), self._err.read_text())

  def close(self) -> None:
    """Ends it."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait(timeout=60)
