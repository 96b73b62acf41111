"""Starting, stopping and choosing runtimes."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import inspect
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import errors
from tff_algos.runtimes import child_process, local_worker, private_apis, runtime


@tff.tensorflow.computation(np.int32)
def _add_one(x):
  return x + 1


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum_at_clients(values):
  """What the clients make of their values is added up."""
  return tff.federated_sum(tff.federated_map(_add_one, values))


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


def _ends(process_id: int, seconds: float = 30.0) -> bool:
  deadline = time.monotonic() + seconds
  while _is_alive(process_id):
    if time.monotonic() > deadline:
      return False
    time.sleep(0.05)
  return True


def test_refuses_an_unknown_name_and_lists_the_known():
  with pytest.raises(ValueError, match="in_process, local_worker"):
    runtime.create_runtime("inprocess")


@pytest.mark.parametrize(
  "num_threads, words", [(0, "at least 1"), (2.5, "whole"), (True, "whole")]
)
def test_a_device_has_a_whole_number_of_threads(num_threads, words):
  with pytest.raises(errors.InputError, match=f"num_threads must be .*{words}"):
    runtime.create_runtime(num_threads=num_threads)


@pytest.mark.parametrize(
  "name, settings",
  [
    ("in_process", dict(workers=2)),
    ("in_process", dict(worker_log="worker.log")),
    ("local_worker", dict(clients_per_part=2)),
    ("dask", dict(num_threads=2)),
  ],
)
def test_another_runtimes_settings_are_refused_by_name(name, settings):
  (setting,) = settings
  with pytest.raises(errors.InputError, match=f"{name} takes .* and no {setting}: "):
    runtime.create_runtime(name, **settings)


def test_every_setting_is_some_runtimes():
  names = set(inspect.signature(runtime.create_runtime).parameters) - {"name"}
  assert set().union(*runtime.SETTINGS.values()) == names


@pytest.mark.parametrize("devices", ["CPU:0", 0, [0]])
def test_devices_are_a_list_of_names(devices):
  with pytest.raises(errors.InputError, match=r"as \['CPU:0'\]; found "):
    runtime.create_runtime(devices=devices)


class _Named(tff.framework.SyncContext):
  """A context that gives its name as the result of everything."""

  def __init__(self, name: str):
    self.name = name

  def invoke(self, comp, arg):
    return self.name


@pytest.fixture
def outside():
  """A default context that is none of ours; computations return "outside" on it."""
  before = private_apis.default_context()
  tff.framework.set_default_context(_Named("outside"))
  yield
  assert _add_one(0) == "outside"
  tff.framework.set_default_context(before)


def test_leaving_brings_back_the_context_before(outside):
  with runtime.create_runtime():
    with runtime.create_runtime():
      assert _add_one(1) == 2
    assert _add_one(2) == 3
    with pytest.raises(ZeroDivisionError), runtime.create_runtime():
      _ = 1 / 0
    assert _add_one(3) == 4
  assert _add_one(4) == "outside"


def test_closing_brings_back_the_context_before(outside):
  running = runtime.create_runtime().install()
  assert _add_one(1) == 2
  running.close()
  assert _add_one(2) == "outside"
  running.close()


def test_closing_what_is_not_installed_changes_nothing(outside):
  runtime.create_runtime().close()
  assert _add_one(1) == "outside"
  other = runtime.create_runtime()
  with runtime.create_runtime():
    other.close()
    assert _add_one(2) == 3


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_runtimes_are_closed_in_any_order(outside, order):
  running = [runtime.create_runtime().install() for _ in range(3)]
  still_open = {0, 1, 2}
  for place in order:
    running[place].close()
    still_open.remove(place)
    in_force = private_apis.default_context()
    last = running[max(still_open)].context if still_open else None
    assert in_force is last or (last is None and _add_one(1) == "outside")


def test_a_runtime_is_left_as_often_as_it_was_entered(outside):
  running = runtime.create_runtime()
  with running:
    with running:
      assert _add_one(1) == 2
    assert _add_one(2) == 3
    running.install()
    running.install()
  assert _add_one(3) == 4  # Two of the installations are left.
  running.close()
  assert _add_one(4) == "outside"


def test_a_runtime_can_be_entered_again(outside):
  running = runtime.create_runtime(num_threads=2)
  for _ in range(3):
    with running:
      assert _sum_at_clients([1, 2, 3]) == 9
    assert _add_one(1) == "outside"


def test_a_log_in_no_folder_is_refused(tmp_path):
  with pytest.raises(errors.InputError, match=r"^worker_log .*missing/log cannot be w"):
    runtime.create_runtime("local_worker", worker_log=str(tmp_path / "missing" / "log"))


def test_the_worker_is_started_again(outside, tmp_path):
  running = runtime.create_runtime("local_worker", worker_log=str(tmp_path / "log"))
  (first,) = _own_workers()
  with running:
    assert _add_one(1) == 2
  assert _ends(first)
  with running:
    (second,) = _own_workers()
    assert second != first
    assert _add_one(1) == 2
    assert _sum_at_clients([1, 2, 3]) == 9
  assert _ends(second)


def test_refuses_to_be_installed_under_another_context(outside):
  running = runtime.create_runtime()
  with tff.framework.get_context_stack().install(_Named("above")):
    with pytest.raises(RuntimeError, match="Another TFF context is in force"):
      running.install()
    assert _add_one(1) == "above"
  running.close()


def test_a_block_that_is_refused_under_another_context_leaves_no_worker(outside):
  running = runtime.create_runtime("local_worker")
  [started] = _own_workers()
  with (
    tff.framework.get_context_stack().install(_Named("above")),
    pytest.raises(RuntimeError, match="Another TFF context is in force"),
    running,
  ):
    raise AssertionError("It was entered.")
  assert _ends(started)


def test_threads_have_their_own(outside):
  running = runtime.create_runtime()
  found = []

  def work():
    with running:
      found.append(_add_one(1))
      running.close()
    with running:
      found.append(_add_one(2))

  with runtime.create_runtime():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [2, 3]
    assert _add_one(5) == 6


@pytest.mark.parametrize("name", ["in_process", "local_worker"])
def test_what_was_closed_elsewhere_says_so(outside, name):
  """And starts no worker, which nobody would end."""
  running = runtime.create_runtime(name).install()
  thread = threading.Thread(target=running.close)
  thread.start()
  thread.join()
  with pytest.raises(RuntimeError, match="was closed: install it again"):
    _add_one(1)
  with running:
    assert _add_one(1) == 2


@contextlib.contextmanager
def _installed_elsewhere(running, *, closed_first=False):
  """Another thread has it installed until this ends, and gives what it computed last."""
  is_in, may_leave, found = *_events(2), []

  def work():
    if closed_first:
      running.close()
    with running:
      is_in.set()
      assert may_leave.wait(60)
      found.append(_add_one(1))

  thread = threading.Thread(target=work)
  thread.start()
  assert is_in.wait(60)
  yield found
  may_leave.set()
  thread.join()


def test_a_thread_leaves_what_it_has_installed_itself(outside):
  running = runtime.create_runtime()
  with contextlib.ExitStack() as elsewhere:
    with running:
      found = elsewhere.enter_context(_installed_elsewhere(running))
    assert _add_one(1) == "outside"
  assert found == [2]
  assert _add_one(1) == "outside"


def test_the_context_before_is_back_though_it_was_closed_elsewhere(outside):
  running = runtime.create_runtime()
  with running:
    thread = threading.Thread(target=running.close)
    thread.start()
    thread.join()
  assert _add_one(1) == "outside"


def test_leaving_what_was_closed_elsewhere_leaves_it_to_others(outside):
  running = runtime.create_runtime()
  with contextlib.ExitStack() as elsewhere, running:
    there = _installed_elsewhere(running, closed_first=True)
    found = elsewhere.enter_context(there)
  assert found == [2]


def _events(count: int) -> list[threading.Event]:
  return [threading.Event() for _ in range(count)]


_BESIDE_PLAIN_TFF = """
  import sys, numpy as np, tensorflow as tf, tensorflow_federated as tff, tff_algos
  sys.path.insert(0, sys.argv[1])
  import test_runtime
  spec = tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.float32)
  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2], np.float32),), ()),
    predict_on_batch_fn=tf.function(lambda w, x, training: tf.linalg.matvec(x, w[0][0])),
    loss_fn=tf.function(lambda found, y, weight=None: tf.reduce_mean((found - y) ** 2)),
    input_spec=spec,
  )
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
  )
  x = np.array([[1, 0], [0, 1]], np.float32)
  data = [
    tf.data.Dataset.from_tensors((x, np.array(y, np.float32))) for y in ([1, 2], [3, 4])
  ]

  def train():
    state = process.next(process.initialize(), data).state
    print(*process.get_model_weights(state).trainable[0], *test_runtime._own_workers())

  train()
  with tff_algos.create_runtime() as ours:
    train()
  train()
  one, two = tff_algos.create_runtime().install(), tff_algos.create_runtime().install()
  one.close()
  train()
  two.close()
  train()
  with ours, tff_algos.create_runtime("local_worker"):
    train()
  train()
"""


@pytest.mark.thorough
def test_beside_plain_tff(tmp_path):
  done = _run_python(_BESIDE_PLAIN_TFF, tmp_path, os.path.dirname(__file__))
  assert done.returncode == 0, done.stderr
  lines = [line.split() for line in done.stdout.splitlines()]
  # The mean of the clients' weights, 0.1 times the mean of their labels.
  weights = np.array([line[:2] for line in lines], float)
  np.testing.assert_allclose(weights, [[0.2, 0.3]] * 7, rtol=1e-6)
  # TFF's own worker from the first round on, once ours beside it.
  workers = [line[2:] for line in lines]
  assert [len(each) for each in workers] == [1] * 5 + [2, 1]
  assert all(_ends(int(worker)) for worker in {w for each in workers for w in each})
  assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> list[str]:
  """What a program without a runtime of ours tells, a line each, as it ends.

  The ids of its workers, and the threads that were started at its end.
  """
  program = """
    import atexit, pathlib, threading, time
    started = []

    @atexit.register  # And so the last of all.
    def tell():
      time.sleep(1)  # What is told of the worker's end is told in a fifth of a second.
      print(*started, "none else")

    import numpy as np, tensorflow as tf, tff_algos
    spec = tff_algos.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    )
    model = tff_algos.Model(
      (np.zeros([2, 3], np.float32),), ("w",), spec, lambda w, x, training, seed: x @ w[0]
    )
    state = tff_algos.build_fed_avg(model).initialize()
    children = pathlib.Path("/proc/self/task").glob("*/children")
    print(*(path.read_text() for path in children))
    start = threading.Thread.start

    @atexit.register
    def watch():
      threading.Thread.start = lambda self: (started.append(self.name), start(self))
  """
  folder = tmp_path_factory.mktemp("ended")
  command = [sys.executable, "-c", textwrap.dedent(program)]
  with open(folder / "out", "w+") as out:  # A pipe would wait for the worker.
    subprocess.run(command, stdout=out, timeout=200, check=True, cwd=folder)
    out.seek(0)
    return out.read().splitlines()


def test_worker_of_tffs_own_ends_with_a_program_that_made_no_runtime(ended):
  workers = [int(worker) for worker in ended[0].split()]
  left = [worker for worker in workers if not _ends(worker)]
  for worker in left:
    os.kill(worker, signal.SIGKILL)
  assert workers and not left


def test_no_thread_starts_while_a_program_ends(ended):
  """Which now and then would crash Python."""
  assert ended[1:] == ["none else"]


@pytest.mark.thorough
def test_programs_that_run_nothing_end_without_a_word_of_tffs(tmp_path):
  """TFF alone prints a traceback at their end."""
  done = _run_python("import tff_algos, tensorflow_federated", tmp_path)
  assert done.returncode == 0
  assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["TFF's own", "local_worker"])
def test_workers_end_where_ctrl_c_is_ignored(tmp_path, name):
  """As in what a script starts with `&`; they are ended by what Ctrl-C sends."""
  program = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import numpy as np, tensorflow_federated as tff, time, tff_algos
    sys.path.insert(0, sys.argv[1])
    import test_runtime
    add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
    if sys.argv[2] == "local_worker":
      running = tff_algos.create_runtime("local_worker").install()
    print(add(1), *test_runtime._own_workers(), flush=True)
    start = time.monotonic()
    if sys.argv[2] == "local_worker":
      running.close()
      assert time.monotonic() - start < 20
  """
  folder = os.path.dirname(os.path.abspath(__file__))
  done = _run_python(program, tmp_path, folder, name)
  assert done.returncode == 0, done.stderr
  result, worker = map(int, done.stdout.split())
  assert result == 2 and _ends(worker)


@tff.tensorflow.computation(tff.SequenceType(np.int64))
def _last(numbers):
  return numbers.reduce(np.int64(0), lambda x, y: y)


def test_worker_runs_and_ends_with_its_runtime(tmp_path):
  log = str(tmp_path / "worker.log")
  with runtime.create_runtime("local_worker", worker_log=log) as running:
    assert _add_one(41) == 42
    (worker,) = _own_workers()
    assert str(log) in running.notice and "without a password" in running.notice
    assert running.worker_peak_memory() > 1_000_000
    with pytest.raises(ValueError, match="leave out its repeat"):
      _last(tf.data.Dataset.range(3).repeat())
    assert _last(tf.data.Dataset.range(3)) == 2
  assert _ends(worker)
  assert os.path.exists(log)


def test_a_log_that_nobody_named_stays_only_if_something_is_in_it():
  with runtime.create_runtime("local_worker") as running:
    assert _add_one(1) == 2
  quiet = running.notice.split()[-1].rstrip(".")
  assert quiet.endswith(".log") and not os.path.exists(quiet)
  with running:  # A worker that starts again has one again.
    assert _add_one(1) == 2
    with open(quiet, "a", encoding="utf-8") as f:
      f.write("what a worker says")
  assert os.path.exists(quiet)
  os.remove(quiet)


def test_worker_that_died_is_replaced_a_bounded_number_of_times(tmp_path):
  before = private_apis.default_context()
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
    with pytest.raises(errors.WorkerLostError, match="died 2 times"):
      _add_one(3)
  finally:
    worker.close()
    tff.framework.set_default_context(before)


def test_worker_that_answers_no_more_ends_when_it_is_replaced(tmp_path):
  """It would hold its memory and its port until the program ends."""
  before = private_apis.default_context()
  worker = local_worker.LocalWorker(str(tmp_path / "log"))
  first = worker.worker
  try:
    tff.framework.set_default_context(worker.context)
    first.stub = types.SimpleNamespace(is_ready=False)  # As without a connection.
    assert _add_one(1) == 2
    assert worker.worker is not first
    assert not first.is_alive
  finally:
    first.stop()
    worker.close()
    tff.framework.set_default_context(before)


def test_child_processes_start_without_running_this_program_in_a_fork(tmp_path):
  # gRPC's threads may abort a forked process before it becomes the child's program.
  forks = []
  os.register_at_fork(before=lambda: forks.append(True))
  process = child_process.start(["/bin/true"], str(tmp_path / "log"))
  assert process.wait() == 0
  assert not forks
  with pytest.raises(FileNotFoundError, match="no program /bin/absent"):
    child_process.start(["/bin/absent"], str(tmp_path / "log"))


def test_child_processes_work_where_they_are_told_to(tmp_path):
  log = tmp_path / "log"
  process = child_process.start(["/bin/pwd"], str(log), cwd=str(tmp_path))
  assert process.wait() == 0
  assert log.read_text().strip() == os.path.realpath(tmp_path)


@pytest.mark.parametrize(
  "ending, status",
  [
    ("", 0),
    ("sys.exit(3)", 3),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
  ],
)
def test_children_that_others_start_end_with_this_process(tmp_path, ending, status):
  program = f"""
    import os, signal, subprocess, sys
    from tff_algos.runtimes import child_process
    child_process.end_children_with_this_process()
    away = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child = subprocess.Popen(["/bin/sleep", "60"], **away)
    print(child.pid, child_process._guards[0].pid, flush=True)
    {ending}
  """
  done = _run_python(program, tmp_path)
  assert done.returncode == status
  child, guard = map(int, done.stdout.split())
  assert _ends(child) and _ends(guard)


def test_worker_that_ends_at_once_is_an_error_not_an_endless_wait(tmp_path, monkeypatch):
  monkeypatch.setattr(local_worker, "_BINARY", "/bin/false")
  with pytest.raises(errors.WorkerLostError, match="ended at once with status 1"):
    local_worker.LocalWorker(str(tmp_path / "log"))


def test_worker_that_never_answers_is_an_error_after_its_time(tmp_path, monkeypatch):
  silent = tmp_path / "silent"
  silent.write_text("#!/bin/sh\nexec sleep 60\n")
  silent.chmod(0o755)
  monkeypatch.setattr(local_worker, "_BINARY", str(silent))
  with pytest.raises(errors.WorkerLostError, match="did not answer on port"):
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


def _run_python(program: str, tmp_path, *arguments: str, **kwargs):
  return subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program), *arguments],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=600,
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
# Importing TFF takes ten times what the rest does: one program ends in several ways, at
# the same time.
_ENDINGS = {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}
_END_AT_ONCE = f"""
  programs = []
  for number, ending in enumerate({list(_ENDINGS)}):
    programs.append(os.fork())
    if not programs[-1]:
      break
  else:
    for program in programs:
      print(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]), flush=True)
    os._exit(0)
  for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT), descriptor)
"""


def test_no_worker_outlives_its_program(tmp_path):
  program = f"{_IMPORTS}{_END_AT_ONCE}{_START_WORKER}\n  exec(ending)\n"
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


def test_serves_threads_that_have_no_context_of_their_own(outside, monkeypatch):
  def in_thread(work):
    results = []

    def run():
      try:
        results.append(work())
      except RuntimeError as error:
        results.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]

  # What other tests have installed serves threads too.
  elsewhere = [each.context for each in runtime._EVERYWHERE]
  monkeypatch.setattr(runtime, "_EVERYWHERE", [])
  with runtime.create_runtime() as first:
    assert in_thread(lambda: _add_one(5)) == 6
    with runtime.create_runtime():
      assert in_thread(lambda: _add_one(5)) == 6
      first.close()
      assert in_thread(lambda: _add_one(5)) == 6
  assert "No default context" in in_thread(lambda: _add_one(5))
  if elsewhere:
    private_apis.serve_other_threads(elsewhere[-1])


def test_what_serves_threads_is_what_was_installed_last_of_those_there(
  outside, monkeypatch
):
  served = []
  monkeypatch.setattr(runtime, "_EVERYWHERE", [])
  monkeypatch.setattr(private_apis, "serve_other_threads", served.append)
  create = runtime.create_runtime
  with create() as first, create() as second, create() as third:
    assert served == [first.context, second.context, third.context]
    third.close()
    assert served[-1] is second.context
    first.close()
    assert served[-1] is second.context
  assert served[-1] is None


def test_runs_inside_of_an_event_loop(outside):
  async def work():
    return _add_one(5)

  for name in ("in_process", "local_worker"):
    with runtime.create_runtime(name):
      assert asyncio.run(work()) == 6


def test_a_federated_context_runs_on_what_was_started_again():
  running = runtime.create_runtime()
  context = running.federated_context()
  for _ in range(2):  # The first is closed when it is left.
    with running, tff.framework.get_context_stack().install(context):
      assert asyncio.run(tff.program.materialize_value(_add_one(5))) == 6


@pytest.mark.thorough
def test_a_program_leaves_no_empty_log(tmp_path):
  """Of a runtime that nobody has closed, as that of a whole program."""
  code = (
    "import tff_algos\n"
    "if __name__ == '__main__':\n"
    "  print(tff_algos.create_runtime('local_worker').install().notice)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "TMPDIR": str(tmp_path)},
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  assert str(tmp_path) in done.stdout
  assert not list(tmp_path.glob("tff_algos_worker_*"))


def test_a_worker_takes_and_gives_more_than_grpc_does_by_itself():
  """Which is 4 MB: a model of a million weights."""
  numbers = tff.TensorType(np.float32, [1_500_000])
  negate = tff.tensorflow.computation(lambda x: -x, numbers)
  with runtime.create_runtime("local_worker"):
    found = negate(np.arange(1_500_000, dtype=np.float32))
  assert found[-1] == -1_499_999
