"""Runs of binaries/worker.py as the workers of several machines.

They are processes of this machine, each with its network namespace; at the end there are
two machines, which are network namespaces too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time

import driver
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import errors
from tff_algos.runtimes import remote_connection, remote_workers, runtime
from tff_algos.runtimes.tunnel import TlsFiles

_SECONDS = 1.0  # What a client of `_slow` takes.


@tff.tensorflow.computation(np.float32, np.float32)
def _wait(x, seconds):
  """Computes for some time; when it began and ended, and in which process."""
  start = tf.timestamp()
  (end,) = tf.while_loop(
    lambda now: now < start + tf.cast(seconds, tf.float64),
    lambda now: [tf.timestamp()],
    [start],
  )
  process = tf.data.TextLineDataset("/proc/self/stat").get_single_element()
  return tf.sin(x), start, end, process


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.CLIENTS), tff.FederatedType(np.float32, tff.SERVER)
)
def _slow(values, seconds):
  """The sum over the clients, which take this time each, and what each one says."""
  results = tff.federated_map(_wait, (values, tff.federated_broadcast(seconds)))
  return tff.federated_sum(results[0]), results


def _processes(results) -> set[bytes]:
  """The ids of the workers that the clients were computed by."""
  return {process.split()[0] for _, _, _, process in results}


@pytest.fixture(scope="module")
def programs(start_worker):
  """Two workers that programs can reach by TLS only."""
  return [start_worker(), start_worker()]


@pytest.fixture(scope="module")
def connect(certificates):
  """`(addresses, owner of the certificate) -> Runtime`."""

  def make(addresses, owner="program", **options) -> runtime.Runtime:
    paths = (certificates / name for name in (f"{owner}.pem", f"{owner}.key", "ca.pem"))
    tls = TlsFiles(*map(str, paths))
    return runtime.create_runtime("remote_workers", workers=addresses, tls=tls, **options)

  return make


@pytest.fixture(scope="module")
def remote(programs, connect):
  """The runtime that uses the two workers; not installed."""
  made = connect([f"localhost:{program.port}" for program in programs])
  yield made
  made.close()


@pytest.fixture
def on(in_process):
  """`(runtime, function) -> what it returns` with this runtime installed."""

  def run(other, function):
    tff.framework.set_default_context(other.context)
    try:
      return function()
    finally:
      tff.framework.set_default_context(in_process.context)

  return run


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "twafl"])
def test_agrees_with_in_process(on, in_process, remote, tmp_path, name):
  problem = problems.make("noisy", str(tmp_path))
  hparams = driver.hparams_of(name)
  process = driver.build(name, problem, hparams)

  def run():
    federation = driver.Federation(process, problem, hparams, seed=3)
    # More clients than workers, as many, fewer.
    for clients in ((0, 1, 2), (3, 1), (2,)):
      federation.round(clients)
    return federation

  here, there = on(in_process, run), on(remote, run)
  assert type(here.state) is type(there.state)
  driver.assert_within_rounding(here.state, there.state, "the server state")
  # A client's state may be a difference of weights, as SCAFFOLD's is.
  size = max(np.max(np.abs(w)) for w in driver.flat(here.weights))
  for client in range(4):
    states = here.client_states[client], there.client_states[client]
    driver.assert_within_rounding(*states, f"client {client}", size=size)


def test_workers_compute_at_the_same_time(on, remote):
  _, results = on(remote, lambda: _slow([0.0, 1.0], _SECONDS))
  assert len(_processes(results)) == 2
  starts, ends = zip(*((start, end) for _, start, end, _ in results))
  assert max(starts) < min(ends)


def test_clients_are_divided_in_their_order(on, remote):
  _, results = on(remote, lambda: _slow([float(i) for i in range(5)], 0.0))
  np.testing.assert_allclose([r[0] for r in results], np.sin(range(5)), rtol=1e-6)
  processes = [r[3].split()[0] for r in results]
  assert len(set(processes[:3])) == len(set(processes[3:])) == 1
  assert processes[0] != processes[3]


def test_runs_what_has_no_aggregation_or_no_clients(on, remote):
  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2 * x

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def double_all(values):
    return tff.federated_map(double, values)

  assert on(remote, lambda: double_all([1.0, 2.0, 3.0])) == [2.0, 4.0, 6.0]
  assert on(remote, lambda: double(4.0)) == 8.0


def _kill_while(seconds: float, kill) -> contextlib.AbstractContextManager:
  """Calls `kill` after this time, within the block."""

  @contextlib.contextmanager
  def context():
    timer = threading.Timer(seconds, kill)
    timer.start()
    yield
    assert not timer.is_alive(), "the block was done before"
    timer.join()

  return context()


def _is_lost(caplog) -> list[str]:
  return [m for m in caplog.messages if "is lost" in m]


def _wait_for_both(on, remote):
  """Ends when clients are computed by two workers again."""
  deadline = time.monotonic() + 20
  while len(_processes(on(remote, lambda: _slow([1.0, 2.0], 0.0))[1])) < 2:
    assert time.monotonic() < deadline
    time.sleep(0.1)


def test_losing_a_worker_changes_nothing_and_it_is_used_again(
  on, remote, programs, caplog
):
  values = [0.1 * i for i in range(6)]
  expected, before = on(remote, lambda: _slow(values, 0.0))
  start = time.monotonic()
  with _kill_while(0.5, programs[1].kill_worker):
    total, results = on(remote, lambda: _slow(values, _SECONDS))
  assert time.monotonic() - start < 30
  assert len(_is_lost(caplog)) == 1 and str(programs[1].port) in _is_lost(caplog)[0]
  assert _processes(results) <= _processes(before)
  assert len(_processes(results)) == 1
  assert total == expected
  _wait_for_both(on, remote)


def test_waits_for_workers_that_are_started_again(on, remote, programs, caplog):
  expected = on(remote, lambda: _slow([1.0, 2.0], 0.0))[0]
  for program in programs:
    program.kill_worker()
  assert on(remote, lambda: _slow([1.0, 2.0], 0.0))[0] == expected
  assert len(_is_lost(caplog)) == 2
  _wait_for_both(on, remote)


def test_gives_up_on_workers_that_do_not_come_back(on, start_worker, monkeypatch):
  monkeypatch.setattr(remote_workers, "_RETURN_SECONDS", 1.0)
  program = start_worker(None)
  address = f"localhost:{program.port}"
  with runtime.create_runtime("remote_workers", workers=[address]) as remote:
    assert "in the clear" in remote.notice
    assert _slow([1.0], 0.0)[0] == pytest.approx(np.sin(1.0))
    program.process.terminate()
    program.process.wait(timeout=20)
    start = time.monotonic()
    with pytest.raises(errors.WorkerLostError, match=f"answers at {address}"):
      _slow([1.0], 0.0)
    assert time.monotonic() - start < 15


def test_a_computation_that_kills_its_workers_is_not_tried_for_ever(
  on, remote, monkeypatch
):
  def die(self, comp, arg):
    raise remote_connection.LostError("killed")

  monkeypatch.setattr(remote_connection.RemoteWorker, "invoke", die)
  with pytest.raises(errors.WorkerLostError, match="lost 4 times"):
    on(remote, lambda: _slow([1.0, 2.0], 0.0))


def test_an_error_of_the_computation_is_not_taken_for_a_lost_worker(on, remote, caplog):
  @tff.tensorflow.computation
  def read_nothing():
    return tf.io.read_file("/nowhere")

  with pytest.raises(Exception, match="/nowhere; No such file"):
    on(remote, read_nothing)
  assert not _is_lost(caplog)


def test_no_worker_is_one_sentence_at_once(connect, tmp_path):
  start = time.monotonic()
  log = str(tmp_path / "log")
  with pytest.raises(errors.WorkerLostError) as caught:
    connect(["localhost:9", "127.0.0.1:9"], worker_log=log)
  assert time.monotonic() - start < 5
  assert str(caught.value).startswith("No worker answers at localhost:9, 127.0.0.1:9: ")
  assert log in str(caught.value)


def test_a_worker_that_is_missing_at_the_start_is_named(connect, programs):
  addresses = [f"localhost:{programs[0].port}", "localhost:9"]
  with connect(addresses) as remote:
    assert "1 of 2 workers answer (not localhost:9)" in remote.notice
    assert _slow([1.0, 2.0], 0.0)[0] == pytest.approx(np.sin(1.0) + np.sin(2.0))


def _connect_in_vain(connect, address: str, owner: str, tmp_path) -> str:
  """Is refused; returns this side's log."""
  log = tmp_path / "log"
  with pytest.raises(errors.WorkerLostError, match="refused the other's cert"):
    connect([address], owner, worker_log=str(log))
  return log.read_text()


def test_workers_refuse_a_program_of_another_authority(connect, programs, tmp_path):
  address = f"localhost:{programs[0].port}"
  _connect_in_vain(connect, address, "foreign_program", tmp_path)
  assert "certificate verify failed" in programs[0].log.read_text()


def test_refuses_a_worker_of_another_authority(connect, start_worker, tmp_path):
  address = f"localhost:{start_worker('foreign_worker').port}"
  said = _connect_in_vain(connect, address, "program", tmp_path)
  assert "certificate verify failed" in said


def test_refuses_a_worker_with_another_name(connect, programs, tmp_path):
  address = f"127.0.0.2:{programs[0].port}"
  said = _connect_in_vain(connect, address, "program", tmp_path)
  assert "certificate verify failed" in said


def test_refuses_rounds_with_several_exchanges_on_several_workers(on, remote, tmp_path):
  problem = problems.make("linear", str(tmp_path))
  hparams = driver.hparams_of("fedagg", estimates="fixed_point", direction="aggregated")
  process = driver.build("fedagg", problem, hparams)
  federation = on(remote, lambda: driver.Federation(process, problem, hparams, seed=3))
  with pytest.raises(
    errors.UnsupportedComputationError, match="aggregates more than once in a row"
  ):
    on(remote, lambda: federation.round((0, 1)))


@pytest.mark.parametrize(
  "workers, part",
  [
    ((), "needs the addresses"),
    (("host",), "host:port; found 'host'"),
    (("host:0",), "host:port; found 'host:0'"),
    (("a:1", "b:1", "a:1"), "a:1 is given 2 times"),
  ],
)
def test_refuses_addresses_that_are_none(workers, part):
  with pytest.raises(ValueError, match=part):
    runtime.create_runtime("remote_workers", workers=workers)


def test_reads_addresses():
  assert remote_workers.parse_address("a.b-c:8470") == ("a.b-c", 8470)
  assert remote_workers.parse_address("[fe80::1]:1") == ("fe80::1", 1)


def test_leaves_no_tunnel_behind(connect, programs, tmp_path):
  log = tmp_path / "log"
  made = connect([f"localhost:{programs[0].port}"], worker_log=str(log))
  tunnel = made.context._workers[0]._target[len("unix:") :]
  assert os.path.exists(tunnel)
  assert os.stat(os.path.dirname(tunnel)).st_mode & 0o077 == 0
  made.close()
  assert not os.path.exists(os.path.dirname(tunnel))
  assert "terminating" in log.read_text()


# --- Two hosts -------------------------------------------------------------------------


_HOSTS = {f"tff_algos_test_{i}": f"10.213.{i}" for i in (1, 2)}


@pytest.fixture
def hosts():
  """Two hosts with a network cable to this one: the address of each by its name, `ip`."""
  if os.geteuid() != 0 or not shutil.which("ip"):
    pytest.skip("only root can lay network cables, by the command ip")

  def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=True)

  def remove():
    for name in _HOSTS:
      ip("netns", "del", name, check=False)

  remove()  # What a test left that was killed.
  try:
    for name, net in _HOSTS.items():
      cable = f"tff_{net}"
      ip("netns", "add", name)
      ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
      ip("addr", "add", f"{net}.1/24", "dev", cable)
      ip("link", "set", cable, "up")
      ip("-n", name, "addr", "add", f"{net}.2/24", "dev", "eth0")
      ip("-n", name, "link", "set", "eth0", "up")
      ip("-n", name, "link", "set", "lo", "up")
    yield {name: f"{net}.2" for name, net in _HOSTS.items()}, ip
  finally:
    remove()


def test_survives_the_silent_loss_of_a_host(
  hosts, start_worker, connect, on, caplog, monkeypatch
):
  names, ip = hosts
  workers = {n: start_worker(prefix=("ip", "netns", "exec", n)) for n in names}
  remote = connect([f"{names[n]}:{workers[n].port}" for n in names])
  lost = list(names)[1]
  with remote:
    expected, before = _slow([1.0, 2.0, 3.0], 0.0)
    assert len(_processes(before)) == 2
    monkeypatch.setattr(remote_connection, "_ASK_EVERY_SECONDS", 0.5)
    monkeypatch.setattr(remote_connection, "_ALIVE_SECONDS", 1.0)
    monkeypatch.setattr(remote_connection, "_FIND_SECONDS", 1.0)
    monkeypatch.setattr(remote_connection, "_SEARCH_SHARE", 0.5)
    with _kill_while(0.5, lambda: ip("-n", lost, "link", "set", "eth0", "down")):
      total, results = _slow([1.0, 2.0, 3.0], _SECONDS)
    assert total == expected
    assert len(_processes(results)) == 1
    assert any("no longer answers" in message for message in _is_lost(caplog))
    ip("-n", lost, "link", "set", "eth0", "up")
    _wait_for_both(lambda _, function: function(), remote)
