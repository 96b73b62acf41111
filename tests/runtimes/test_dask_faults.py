"""Workers and schedulers that are lost in a round, and computations that fail there."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Optional

import dask
import distributed
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from distributed.utils import get_mp_context
from programs import processes_of, wait_for
from training import SMALL, at_round, metrics, place, without_seconds

import tff_algos
from tff_algos.runtimes import dask_cluster, dask_context

_THOROUGH = pytest.mark.thorough

_CLIENTS = 6
# Bounds of what must end by itself; a worker that starts imports TFF.
_SECONDS = 120


@pytest.fixture(scope="module")
def client():
  """Of two worker processes, each of which is started again when it dies.

  They are forked by a process that has imported TFF and asked it for nothing: a dozen
  are started here, and importing takes each seconds. Those of the programs below are
  started as users have them.
  """
  method = {"distributed.worker.multiprocessing-method": "forkserver"}
  # Ten heartbeats, Dask's least; its default is five minutes.
  lost = {"distributed.scheduler.worker-ttl": "5s"}
  with dask.config.set({**method, **lost}), contextlib.ExitStack() as stack:
    get_mp_context()  # It has a list of its own, once.
    multiprocessing.set_forkserver_preload(["tff_algos.runtimes.in_process"])
    made, folder = dask_cluster.start(stack, 2)
    # What `create_runtime` starts is this one, each time again.
    with pytest.MonkeyPatch.context() as patched:
      patched.setattr(dask_cluster, "start", lambda *_: (made, folder))
      yield made


def _reading() -> tff.Computation:
  """Sums what clients make of a vector and their file, and gives it back too."""
  vector = tff.TensorType(np.float32, [8])

  @tff.tensorflow.computation(np.str_, vector)
  def work(path, values):
    with tf.control_dependencies([tf.io.write_file(path + ".begun", "")]):
      path = tf.identity(path)
    waited = tf.while_loop(
      lambda _: tf.equal(tf.size(tf.io.matching_files(path + ".go")), 0),
      lambda n: [n + 1],
      [tf.constant(0)],
    )
    with tf.control_dependencies(waited):
      read = tf.strings.length(tf.io.read_file(path))
    return values / 3.0 + tf.cast(read, tf.float32)

  @tff.federated_computation(tff.FederatedType((np.str_, vector), tff.CLIENTS))
  def compute(clients):
    sent = tff.federated_map(work, clients)
    return sent, tff.federated_sum(sent)

  return compute


@pytest.fixture(scope="module")
def compute() -> tff.Computation:
  return _reading()


class Cohort:
  """The clients' files and vectors; one client waits for `let_go` within its work."""

  def __init__(self, folder, waiting: Optional[int] = None):
    folder.mkdir(exist_ok=True)
    self.paths = [folder / f"client_{i}" for i in range(_CLIENTS)]
    for path in self.paths:
      path.write_text("12345")
      _beside(path, "go").touch()
    draw = np.random.default_rng(len(folder.name))
    self.values = draw.normal(size=(_CLIENTS, 8)).astype(np.float32)
    self._waiting = self.paths[waiting or 0]
    if waiting is not None:
      _beside(self._waiting, "go").unlink()

  def argument(self):
    return [(str(path), values) for path, values in zip(self.paths, self.values)]

  def wait_until_begun(self) -> None:
    """Until a worker has the client wait, for the first time or again."""
    begun = _beside(self._waiting, "begun")
    wait_for(begun.exists, _SECONDS)
    begun.unlink()

  def let_go(self) -> None:
    """Whoever waits, now or from now on, goes on."""
    _beside(self._waiting, "go").touch()


def _beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
  return path.with_name(f"{path.name}.{suffix}")


@pytest.fixture
def keys(monkeypatch) -> list[str]:
  """For each client the key of the job with its part, in the order they are given out."""
  found: list[str] = []
  submit = dask_context.DaskContext._submit_jobs

  def watched(self, call, jobs, workers):
    given = submit(self, call, jobs, workers)
    for each in given:
      found.extend([each.future.key] * sum(each.job.sizes))
    return given

  monkeypatch.setattr(dask_context.DaskContext, "_submit_jobs", watched)
  return found


def _in_thread(function) -> concurrent.futures.Future:
  """Calls it in a thread, which no failure has us wait for."""
  future: concurrent.futures.Future = concurrent.futures.Future()

  def run():
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return future


def _start(compute, argument, **settings) -> concurrent.futures.Future:
  """Runs a computation on a runtime, in a thread."""

  def run():
    with tff_algos.create_runtime(**settings, clients_per_part=1):
      return compute(argument)

  return _in_thread(run)


def _on(client, compute, cohort) -> concurrent.futures.Future:
  return _start(compute, cohort.argument(), name="dask", workers=2)


def _in_process(compute, cohort):
  return _start(compute, cohort.argument(), name="in_process").result(_SECONDS)


def _assert_same(found, expected) -> None:
  flat = [np.asarray(leaf) for leaf in tf.nest.flatten(found)]
  wanted = [np.asarray(leaf) for leaf in tf.nest.flatten(expected)]
  assert [leaf.tobytes() for leaf in flat] == [leaf.tobytes() for leaf in wanted]


def _worker_of(client, key: str) -> str:
  [worker] = [w for w, its in client.processing().items() if key in its]
  return worker


def _pids(client) -> dict[str, int]:
  return client.run(os.getpid)


# --- Workers that are lost --------------------------------------------------------------


@_THOROUGH
def test_a_worker_lost_before_the_first_round_is_not_waited_for(
  client, compute, tmp_path
):
  cohort = Cohort(tmp_path / "clients")
  with tff_algos.create_runtime("dask", workers=2, clients_per_part=1):
    # They have said what they are like, one of them for the last time.
    pids = _pids(client)
    killed = min(pids)
    os.kill(pids[killed], signal.SIGKILL)
    wait_for(lambda: killed not in client.nthreads(), _SECONDS)
    found = _in_thread(lambda: compute(cohort.argument()))
    _assert_same(found.result(_SECONDS), _in_process(compute, cohort))


@pytest.mark.parametrize(
  "waiting",
  [_CLIENTS // 2, *(pytest.param(n, marks=_THOROUGH) for n in (0, _CLIENTS - 1))],
)
def test_a_worker_killed_in_a_round_leaves_the_result_as_it_is(
  client, compute, keys, tmp_path, capfd, waiting
):
  cohort = Cohort(tmp_path, waiting)
  running = _on(client, compute, cohort)
  cohort.wait_until_begun()
  worker = _worker_of(client, keys[waiting])
  os.kill(_pids(client)[worker], signal.SIGKILL)
  cohort.let_go()
  found = running.result(_SECONDS)
  _assert_same(found, _in_process(compute, cohort))
  out, err = capfd.readouterr()
  assert out == ""
  assert err == f"The worker {worker} was lost: others do what it was doing.\n"
  client.wait_for_workers(2, _SECONDS)


def test_all_workers_killed_at_once_are_started_again(client, compute, tmp_path, capfd):
  cohort = Cohort(tmp_path, 1)
  running = _on(client, compute, cohort)
  cohort.wait_until_begun()
  before = _pids(client)
  for pid in before.values():
    os.kill(pid, signal.SIGKILL)
  cohort.let_go()
  _assert_same(running.result(_SECONDS), _in_process(compute, cohort))
  assert sorted(capfd.readouterr().err.splitlines()) == sorted(
    f"The worker {w} was lost: others do what it was doing." for w in before
  )
  client.wait_for_workers(2, _SECONDS)
  assert not set(_pids(client).values()) & set(before.values())


def test_a_part_that_every_worker_dies_of_is_one_sentence(
  client, compute, keys, tmp_path, capfd, monkeypatch
):
  allowed = 1
  monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", allowed)
  cohort = Cohort(tmp_path, 2)
  running = _on(client, compute, cohort)
  lost = []
  for _ in range(allowed + 1):
    cohort.wait_until_begun()
    lost.append(_worker_of(client, keys[2]))
    os.kill(_pids(client)[lost[-1]], signal.SIGKILL)
  with pytest.raises(tff_algos.WorkerLostError) as error:
    running.result(_SECONDS)
  assert str(error.value).startswith("2 workers have died one after another of the same")
  assert "\n" not in str(error.value)
  assert [line.split()[2] for line in capfd.readouterr().err.splitlines()] == lost
  client.wait_for_workers(2, _SECONDS)


@_THOROUGH
def test_what_a_hanging_worker_was_doing_is_done_elsewhere(
  client, compute, keys, tmp_path, capfd
):
  cohort = Cohort(tmp_path, 0)
  running = _on(client, compute, cohort)
  cohort.wait_until_begun()
  worker = _worker_of(client, keys[0])
  pid = _pids(client)[worker]
  os.kill(pid, signal.SIGSTOP)
  cohort.let_go()
  try:
    found = running.result(_SECONDS)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
  _assert_same(found, _in_process(compute, cohort))
  err = capfd.readouterr().err
  assert err == f"The worker {worker} was lost: others do what it was doing.\n"
  client.wait_for_workers(2, _SECONDS)


# --- Errors that another worker would meet too ------------------------------------------


def test_a_file_that_workers_lack_is_told_once_with_client_and_path(
  client, compute, keys, tmp_path, capfd
):
  client.wait_for_workers(2, _SECONDS)
  before = _pids(client)
  cohort = Cohort(tmp_path)
  cohort.paths[4].unlink()
  with pytest.raises(tff_algos.InputError) as error:
    _on(client, compute, cohort).result(_SECONDS)
  message = str(error.value)
  assert message.startswith(
    f"Client 4 of the cohort ({cohort.paths[4]}) on the worker tls"
  )
  assert f"no readable file: {cohort.paths[4]}; No such file or directory." in message
  assert "\n" not in message
  # Nobody died of it or has to be started again, and no part was given out twice.
  assert len(keys) == _CLIENTS
  cohort.paths[4].write_text("12345")
  _assert_same(
    _on(client, compute, cohort).result(_SECONDS), _in_process(compute, cohort)
  )
  assert _pids(client) == before
  assert capfd.readouterr() == ("", "")


def test_a_computations_own_error_is_of_the_class_that_in_process_raises(
  client, tmp_path, capfd
):
  @tff.tensorflow.computation(np.int32)
  def checked(n):
    with tf.control_dependencies([tf.debugging.assert_less(n, 3, message="too many")]):
      return tf.identity(n)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_sum(tff.federated_map(checked, numbers))

  before = _pids(client)
  raised = []
  for settings in (dict(name="in_process"), dict(name="dask", workers=2)):
    with pytest.raises(tf.errors.OpError) as error:
      _start(compute, [0, 1, 7, 2], **settings).result(_SECONDS)
    raised.append(error.value)
  expected, found = raised
  assert type(found) is type(expected) is tf.errors.InvalidArgumentError
  assert "too many" in expected.message and "too many" in found.message
  assert found.message.startswith("Client 2 of the cohort on the worker tls://127.0.0.1:")
  assert _start(compute, [0, 1], name="dask", workers=2).result(_SECONDS) == 1
  assert _pids(client) == before
  assert capfd.readouterr() == ("", "")


# --- Several programs -------------------------------------------------------------------


def test_two_runs_on_one_cluster_at_once(client, compute, tmp_path, capfd):
  cohorts = [Cohort(tmp_path / name, 0) for name in ("one", "another")]
  with distributed.Client(client.cluster, set_as_default=False) as other:
    running = [_on(c, compute, k) for c, k in zip((client, other), cohorts)]
    for cohort in cohorts:  # Both are in the midst of their round now.
      cohort.wait_until_begun()
    for cohort in cohorts:
      cohort.let_go()
    found = [future.result(_SECONDS) for future in running]
  for cohort, result in zip(cohorts, found):
    _assert_same(result, _in_process(compute, cohort))
  assert capfd.readouterr() == ("", "")


@_THOROUGH
@pytest.mark.skipif(
  sys.version_info < (3, 10),
  reason="Python 3.9's newest Dask starts such workers again without end",
)
def test_a_script_that_workers_cannot_import_is_told_so(tmp_path):
  script = tmp_path / "script.py"
  script.write_text(
    "import contextlib\n"
    "from tff_algos.runtimes import dask_cluster\n"
    "with contextlib.ExitStack() as stack:\n"
    "  dask_cluster.start(stack, 1)\n"
  )
  done = subprocess.run(
    [sys.executable, str(script)], capture_output=True, text=True, timeout=_SECONDS
  )
  assert done.returncode == 1
  assert 'under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


# --- Schedulers that are lost -----------------------------------------------------------


class Cluster:
  """A scheduler and a worker by their own programs, without TLS on 127.0.0.1."""

  def __init__(self, folder, stack: contextlib.ExitStack):
    self._log, self._stack = folder / "log", stack
    about = folder / "scheduler.json"
    here = ("--host=127.0.0.1", "--no-dashboard")
    self.scheduler = self._start(
      *("scheduler", *here, "--port=0", "--dashboard-address=127.0.0.1:0"),
      f"--scheduler-file={about}",
    )
    wait_for(lambda: about.exists() and about.read_text(), _SECONDS)
    self.address = json.loads(about.read_text())["address"]
    self._start("worker", self.address, *here, "--nthreads=1", "--no-nanny")

  def _start(self, *words: str) -> int:
    with open(self._log, "a") as log:
      process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words], stdout=log, stderr=log
      )
    self._stack.callback(process.wait)
    self._stack.callback(process.kill)
    return process.pid


@pytest.fixture
def cluster(tmp_path):
  with contextlib.ExitStack() as stack:
    yield Cluster(tmp_path, stack)


@_THOROUGH
def test_a_scheduler_killed_in_a_round_is_one_sentence(
  cluster, compute, tmp_path, capfd, monkeypatch
):
  monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 5)
  gone = "The Dask scheduler is gone, or no longer reached."
  cohort = Cohort(tmp_path / "clients", 1)
  with tff_algos.create_runtime(
    "dask", scheduler=cluster.address, clients_per_part=1
  ) as runtime:
    running = _in_thread(lambda: compute(cohort.argument()))
    cohort.wait_until_begun()
    os.kill(cluster.scheduler, signal.SIGKILL)
    cohort.let_go()
    with pytest.raises(tff_algos.WorkerLostError) as error:
      running.result(_SECONDS)
    assert str(error.value) == gone
    # As after a long evaluation, by whose end Dask has given up.
    wait_for(lambda: runtime.context._client.status == "closed", _SECONDS)
    with pytest.raises(tff_algos.WorkerLostError) as error:
      compute(cohort.argument())
    assert str(error.value) == gone
  assert capfd.readouterr() == ("", "")


# --- Runs of train.py -------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(fork_program, tmp_path_factory) -> list[dict[str, str]]:
  """The rounds of a run in_process."""
  folder = tmp_path_factory.mktemp("unbroken")
  run_dir, where = place(folder)
  done = fork_program("train.py", *SMALL, *where, "--rounds=4", cwd=folder)
  assert (done.status, done.err) == (0, ""), done
  return without_seconds(metrics(run_dir))


@pytest.fixture
def set_as_forks_are(monkeypatch):
  """TensorFlow, for workers that are started by themselves."""
  monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")


@_THOROUGH
@pytest.mark.usefixtures("set_as_forks_are")
def test_a_run_whose_scheduler_is_killed_goes_on_elsewhere(
  cluster, fork_program, unbroken, tmp_path
):
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, "--rounds=4", "--checkpoint_every=1"]
  # As long as Dask tries to reach it again.
  sooner = (
    "from tff_algos.runtimes import dask_cluster\ndask_cluster._CONNECT_SECONDS = 5\n"
  )
  killing = sooner + at_round(2, f"os.kill({cluster.scheduler}, signal.SIGKILL)")
  there = ("--runtime=dask", f"--scheduler={cluster.address}")
  done = fork_program("train.py", *flags, *there, cwd=tmp_path, before=killing)
  assert done.err == "The Dask scheduler is gone, or no longer reached.\n"
  assert done.status == 1
  assert len(metrics(run_dir)) == 2
  here = ("--runtime=in_process", "--resume")
  done = fork_program("train.py", *flags, *here, cwd=tmp_path)
  assert (done.status, done.err) == (0, ""), done
  assert without_seconds(metrics(run_dir)) == unbroken


def _in_session(folder: pathlib.Path, number: int, code: str) -> str:
  """As `at_round`; and a file says the session's id."""
  path = str(folder / "session")
  told = f"import os\nopen({path!r}, 'w').write(str(os.getsid(0)))\n"
  return told + at_round(number, code)


def _left_of(folder: pathlib.Path) -> dict[int, str]:
  return processes_of(int((folder / "session").read_text()))


# A worker takes seconds to start, and one is enough to see that it ends by SIGTERM too.
@_THOROUGH
@pytest.mark.parametrize("name, workers", [("SIGINT", 2), ("SIGTERM", 1)])
def test_signal_ends_the_round_and_leaves_no_process(
  fork_program, unbroken, tmp_path, name, workers
):
  run_dir, where = place(tmp_path)
  # A terminal and `timeout` tell the workers too.
  told = _in_session(tmp_path, 2, f"os.killpg(0, signal.{name})")
  flags = (*SMALL, *where, "--rounds=5000", "--runtime=dask", f"--workers={workers}")
  done = fork_program("train.py", *flags, cwd=tmp_path, before=told)
  assert done.err.startswith("\nstopping after this round; once more to stop now")
  assert done.err.count("\n") == 2
  assert done.status == 75
  assert without_seconds(metrics(run_dir)) == unbroken[:3]
  # Python's own helper ends when it finds that the program has.
  wait_for(lambda: not _left_of(tmp_path), 30)


@_THOROUGH
def test_workers_of_a_killed_program_end(fork_program, tmp_path):
  _, where = place(tmp_path)
  killing = _in_session(tmp_path, 1, "os.kill(os.getpid(), signal.SIGKILL)")
  flags = (*SMALL, *where, "--rounds=5000", "--runtime=dask", "--workers=1")
  done = fork_program("train.py", *flags, cwd=tmp_path, before=killing)
  assert done.status == -signal.SIGKILL
  wait_for(lambda: not _left_of(tmp_path), 30)
