"""Starting, stopping and choosing runtimes."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.runtimes import child_process, local_worker, runtime


@tff.tensorflow.computation(np.int32)
def _add_one(x):
  return x + 1


def _is_alive(process_id: int) -> bool:
  try:
    with open(f"/proc/{process_id}/stat") as f:
      return f.read().rsplit(")", 1)[1].split()[0] != "Z"
  except OSError:
    return False


def _own_workers() -> list[int]:
  """The ids of the workers that this process has started and that still run."""
  found = []
  for folder in glob.glob("/proc/[0-9]*"):
    try:
      with open(f"{folder}/stat") as f:
        state, parent = f.read().rsplit(")", 1)[1].split()[:2]
      with open(f"{folder}/cmdline") as f:
        command = f.read()
    except OSError:
      continue  # It has just ended.
    if int(parent) == os.getpid() and state != "Z" and "worker_binary" in command:
      found.append(int(folder[len("/proc/") :]))
  return found


def _ends(process_id: int, seconds: float = 15.0) -> bool:
  deadline = time.monotonic() + seconds
  while _is_alive(process_id):
    if time.monotonic() > deadline:
      return False
    time.sleep(0.05)
  return True


def test_refuses_an_unknown_name_and_lists_the_known():
  with pytest.raises(ValueError, match="in_process, local_worker"):
    runtime.create_runtime("inprocess")


def test_closing_brings_back_the_runtime_before():
  with runtime.create_runtime("in_process"):
    with runtime.create_runtime("in_process"):
      assert _add_one(1) == 2
    assert _add_one(2) == 3


def test_a_runtime_that_was_installed_twice_is_gone_when_closed():
  with runtime.create_runtime("in_process"):
    twice = runtime.create_runtime("in_process")
    twice.install()
    twice.install()
    twice.close()
    assert _add_one(3) == 4
    with pytest.raises(RuntimeError, match="create another"):
      twice.install()


def test_without_a_runtime_the_error_says_how_to_get_one(tmp_path):
  program = """
    import numpy as np, tensorflow_federated as tff, tff_algos
    comp = tff.tensorflow.computation(lambda x: x + 1, np.int32)
    with tff_algos.create_runtime():
      assert comp(1) == 2
    try:
      comp(1)
    except RuntimeError as error:
      print(error)
  """
  done = _run_python(program, tmp_path)
  assert "create_runtime().install()" in done.stdout
  assert done.stderr == ""


def test_worker_runs_and_ends_with_its_runtime(tmp_path):
  log = str(tmp_path / "worker.log")
  with runtime.create_runtime("local_worker", worker_log=log) as running:
    assert _add_one(41) == 42
    (worker,) = _own_workers()
    assert str(log) in running.notice and "without a password" in running.notice
    assert running.worker_peak_memory() > 1_000_000
  assert _ends(worker)
  assert os.path.exists(log)


def test_worker_that_died_is_replaced_a_bounded_number_of_times(tmp_path):
  worker = local_worker.LocalWorker(str(tmp_path / "log"), max_restarts=1)
  try:
    tff.framework.set_default_context(worker.context)
    assert _add_one(1) == 2
    first = worker.worker.process_id
    os.kill(first, signal.SIGKILL)
    assert _ends(first)
    assert _add_one(2) == 3
    assert worker.worker.process_id != first
    os.kill(worker.worker.process_id, signal.SIGKILL)
    assert _ends(worker.worker.process_id)
    with pytest.raises(local_worker.WorkerLostError, match="died 2 times"):
      _add_one(3)
  finally:
    worker.close()
    runtime.create_runtime().install().close()


def test_child_processes_start_without_running_this_program_in_a_fork(tmp_path):
  # gRPC's threads may abort a forked process before it becomes the child's program.
  forks = []
  os.register_at_fork(before=lambda: forks.append(True))
  process = child_process.start(["/bin/true"], str(tmp_path / "log"))
  assert process.wait() == 0
  assert not forks
  with pytest.raises(FileNotFoundError, match="no program /bin/absent"):
    child_process.start(["/bin/absent"], str(tmp_path / "log"))


def test_worker_that_ends_at_once_is_an_error_not_an_endless_wait(tmp_path, monkeypatch):
  monkeypatch.setattr(local_worker, "_BINARY", "/bin/false")
  with pytest.raises(local_worker.WorkerLostError, match="ended at once with status 1"):
    local_worker.LocalWorker(str(tmp_path / "log"))


def test_worker_that_never_answers_is_an_error_after_its_time(tmp_path, monkeypatch):
  silent = tmp_path / "silent"
  silent.write_text("#!/bin/sh\nexec sleep 60\n")
  silent.chmod(0o755)
  monkeypatch.setattr(local_worker, "_BINARY", str(silent))
  with pytest.raises(local_worker.WorkerLostError, match="did not answer on port"):
    local_worker.LocalWorker(str(tmp_path / "log"), start_seconds=0.5)


def test_worker_refuses_to_start_in_a_thread(tmp_path):
  caught = []

  def start():
    try:
      local_worker.LocalWorker(str(tmp_path / "log"))
    except RuntimeError as error:
      caught.append(str(error))

  thread = threading.Thread(target=start)
  thread.start()
  thread.join()
  assert "main thread" in caught[0]


def _run_python(program: str, tmp_path, **kwargs):
  return subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=120,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    **kwargs,
  )


_IMPORTS = """
  import os, sys, numpy as np, tensorflow_federated as tff
  from tff_algos.runtimes import local_worker, runtime
"""
_START_WORKER = """
  original = local_worker.LocalWorker._start
  def remember(self):
    worker = original(self)
    print(worker.process_id, flush=True)
    return worker
  local_worker.LocalWorker._start = remember
  runtime.create_runtime("local_worker").install()
  assert tff.tensorflow.computation(lambda x: x + 1, np.int32)(1) == 2
"""
# Importing TFF takes ten times what the rest does: one program ends in several ways, one
# after the other.
_ENDINGS = {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}
_END_IN_TURN = f"""
  for number, ending in enumerate({list(_ENDINGS)}):
    if not os.fork():
      break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
  else:
    os._exit(0)
  for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT), descriptor)
"""


def test_no_worker_outlives_its_program(tmp_path):
  program = f"{_IMPORTS}{_END_IN_TURN}{_START_WORKER}\n  exec(ending)\n"
  done = _run_python(program, tmp_path)
  assert done.stdout.split() == [str(status) for status in _ENDINGS.values()]
  for number in range(len(_ENDINGS)):
    assert _ends(int((tmp_path / f"{number}.out").read_text().split()[0]))
  assert (tmp_path / "0.err").read_text() == (tmp_path / "1.err").read_text() == ""
  assert "ValueError" in (tmp_path / "2.err").read_text()


def test_no_worker_outlives_a_killed_program(tmp_path):
  program = f"{_IMPORTS}{_START_WORKER}\n  import time; time.sleep(60)\n"
  with open(tmp_path / "out", "w+") as out:
    process = subprocess.Popen(
      [sys.executable, "-c", textwrap.dedent(program)],
      stdout=out,
      stderr=subprocess.DEVNULL,
    )
    try:
      deadline = time.monotonic() + 90
      while not (tmp_path / "out").read_text().strip():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
      worker = int((tmp_path / "out").read_text().split()[0])
      assert _is_alive(worker)
    finally:
      process.kill()
      process.wait()
  assert _ends(worker)
