"""The dask runtime on workers that are threads of this process."""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import multiprocessing
import pathlib
import sys
import threading
import warnings
from types import SimpleNamespace
from unittest import mock

import dask
import distributed
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from programs import wait_for

import tff_algos
from tff_algos import client_data
from tff_algos.runtimes import (
  blocks,
  dask_cluster,
  dask_context,
  dask_errors,
  dask_tasks,
  dask_worker,
  execution,
  private_apis,
)


@pytest.fixture(scope="module")
def cluster():
  with distributed.LocalCluster(
    n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
  ) as started:
    yield started


@pytest.fixture
def client(cluster):
  with distributed.Client(cluster, set_as_default=False) as made:
    yield made


@pytest.fixture
def on_cluster(client):
  with tff_algos.create_runtime("dask", client=client) as runtime:
    yield runtime


def _sum(numbers_type=np.int32) -> tff.Computation:
  double = tff.tensorflow.computation(lambda n: 2 * n, numbers_type)

  @tff.federated_computation(tff.FederatedType(numbers_type, tff.CLIENTS))
  def compute(numbers):
    doubled = tff.federated_map(double, numbers)
    return doubled, tff.federated_sum(doubled)

  return compute


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_clients_get_what_is_theirs(on_cluster, count):
  doubled, total = _sum()(list(range(count)))
  assert list(doubled) == [2 * n for n in range(count)]
  assert total == count * (count - 1)


def test_a_cluster_may_lose_threads_while_more_jobs_wait_than_it_now_takes(
  client, monkeypatch
):
  context, given = dask_context.DaskContext, []
  submit = context._submit_jobs

  def note_and_submit(self, *arguments):
    given.append(arguments)
    return submit(self, *arguments)

  def threads(self):
    return dict.fromkeys(self._threads(), 1 if given else 20)

  monkeypatch.setattr(context, "_submit_jobs", note_and_submit)
  monkeypatch.setattr(context, "_threads_in_use", threads)
  with tff_algos.create_runtime("dask", client=client, clients_per_part=1):
    doubled, _ = _sum()(list(range(90)))
  assert list(doubled) == [2 * n for n in range(90)]


def test_order_of_a_sum_is_that_of_in_process(client):
  written = tff.tensorflow.computation(
    lambda a, b: tf.strings.join(["(", a, "+", b, ")"]), (np.str_, np.str_)
  )

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def compute(names):
    same = tff.tensorflow.computation(lambda a: a, np.str_)
    return tff.federated_aggregate(names, "0", written, written, same)

  names = [f"c{i}" for i in range(11)]
  for size in (1, 3, None):
    with tff_algos.create_runtime(clients_per_part=size):
      expected = compute(names)
    with tff_algos.create_runtime("dask", client=client, clients_per_part=size):
      assert compute(names) == expected


@pytest.mark.thorough
def test_clients_in_blocks(client, monkeypatch, tmp_path):
  monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(fewest_clients=2))
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int32)
  )
  layers = [tf.keras.layers.Input([6]), tf.keras.layers.Dense(3)]
  model = tff_algos.from_keras(tf.keras.Sequential(layers), spec)
  draw = np.random.default_rng(0)
  data = {
    str(i): (draw.normal(size=(n, 6)).astype(np.float32), draw.integers(0, 3, n))
    for i, n in enumerate([5, 3, 5, 2, 3])
  }
  clients = tff_algos.write_clients(str(tmp_path), data, spec)
  process = tff_algos.build_scaffold(
    model, tff_algos.ScaffoldHparams(batch_size=2), num_clients=5
  )
  plan = execution.Plan(process.next)
  works = [v.work_of(5, on_gpu=False) for v in plan.levels if v.at_clients]
  assert any(isinstance(work, blocks.Blocks) for work in works)

  def run(**settings):
    with tff_algos.create_runtime(**settings, clients_per_part=2):
      state, own = process.initialize(), [process.initialize_client()] * 5
      for round_num in range(2):
        inputs = [
          tff_algos.ClientInput(clients.path(c), np.array([round_num, i], np.int32))
          for i, c in enumerate(clients.ids)
        ]
        output = process.next(state, own, inputs)
        state, own = output.state, output.client_states
      return state, own, output.metrics

  found, expected = run(name="dask", client=client), run()
  tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_two_jobs_are_for_two_workers(client, on_cluster):
  """Also where one has what is broadcast; the scheduler alone may have it do both."""
  add = tff.tensorflow.computation(
    lambda v, n: tf.reduce_sum(v) + n, (tff.TensorType(np.int32, [1000]), np.int32)
  )

  @tff.federated_computation(
    tff.FederatedType(tff.TensorType(np.int32, [1000]), tff.SERVER),
    tff.FederatedType(np.int32, tff.CLIENTS),
  )
  def compute(value, numbers):
    return tff.federated_sum(
      tff.federated_map(add, (tff.federated_broadcast(value), numbers))
    )

  client.get_task_stream()
  for num_rounds in range(1, 21):
    assert compute(np.ones(1000, np.int32), [1, 2]) == 2003
    ran = [t for t in client.get_task_stream() if "_parts" in t["key"]]
    assert len(ran) == 2 * num_rounds
    assert len({t["worker"] for t in ran[-2:]}) == 2


def test_data_sets_travel_with_what_they_hold(on_cluster):
  total = tff.tensorflow.computation(
    lambda numbers: numbers.reduce(np.int32(0), lambda a, b: a + b),
    tff.SequenceType(np.int32),
  )

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
  def compute(numbers):
    return tff.federated_sum(tff.federated_map(total, numbers))

  sets = [
    tf.data.Dataset.from_tensor_slices(np.arange(n, dtype=np.int32)) for n in (3, 5)
  ]
  assert compute(sets) == 3 + 10

  def draw():
    yield np.int32(1)

  spec = tf.TensorSpec([], tf.int32)
  calls_python = tf.data.Dataset.from_generator(draw, output_signature=spec)
  with pytest.raises(tff_algos.UnsupportedComputationError, match="in_process"):
    compute([calls_python])


def test_a_computation_is_sent_once_and_planned_once(on_cluster, monkeypatch):
  sent, planned = [], []
  submit, plan = dask_context.DaskContext._submit, dask_worker.private_apis

  def watched(self, function, *arguments, **kwargs):
    # What is broadcast is pickled, and so begins with a mark of its own.
    sent.extend(
      a for a in arguments if isinstance(a, bytes) and not a.startswith(b"\x80")
    )
    return submit(self, function, *arguments, **kwargs)

  parse = plan.parse_computation
  monkeypatch.setattr(dask_context.DaskContext, "_submit", watched)
  monkeypatch.setattr(plan, "parse_computation", lambda b: planned.append(b) or parse(b))
  compute = _sum(np.int64)
  for _ in range(3):
    compute([1, 2, 3])
  assert len(sent) == len(planned) == 1


def test_the_last_of_many_computations_stay_planned(monkeypatch):
  """Else each part of a round would have it planned and traced anew."""
  monkeypatch.setattr(dask_worker, "_PLANS", collections.OrderedDict())
  monkeypatch.setattr(dask_worker, "_MOST_PLANS", 2)
  monkeypatch.setattr(dask_worker.private_apis, "parse_computation", lambda b: b)
  monkeypatch.setattr(execution, "Plan", lambda comp, is_compiled: object())
  first, _, third = (dask_worker.plan_of(name) for name in (b"1", b"2", b"3"))
  assert dask_worker.plan_of(b"3") is third
  assert dask_worker.plan_of(b"1") is not first


def test_a_clients_own_error_names_the_client(on_cluster):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    @tff.tensorflow.computation(np.int32)
    def checked(n):
      with tf.control_dependencies([tf.debugging.assert_less(n, 3, message="too many")]):
        return tf.identity(n)

    return tff.federated_sum(tff.federated_map(checked, numbers))

  with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)Client 2 .*too many"):
    compute([0, 1, 7, 2])
  assert compute([0, 1, 2]) == 3


def test_an_error_names_no_bytes_of_a_data_set(on_cluster):
  total = tff.tensorflow.computation(
    lambda numbers: numbers.reduce(np.int32(0), lambda a, b: a + 1 // b),
    tff.SequenceType(np.int32),
  )

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
  def compute(numbers):
    return tff.federated_sum(tff.federated_map(total, numbers))

  sets = [tf.data.Dataset.from_tensors(np.int32(n)) for n in (1, 0)]
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"Client 1 of the cohort on "):
    compute(sets)


@pytest.mark.parametrize("count", [1, 20])
def test_a_file_that_is_cut_is_told_with_its_path(on_cluster, tmp_path, count):
  """On the worker, so a copy of its own may be: alone, and one of many clients."""
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
  )
  data = {str(i): (np.ones((3, 2)), [0, 1, 2]) for i in range(count)}
  clients = tff_algos.write_clients(str(tmp_path), data, spec)
  path = pathlib.Path(clients.path("0"))
  path.write_bytes(path.read_bytes()[:-1])

  @tff.tensorflow.computation(np.str_)
  def add_up(path):
    return tf.reduce_sum(client_data.read(path, spec).x)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def compute(paths):
    return tff.federated_sum(tff.federated_map(add_up, paths))

  with pytest.raises(tff_algos.InputError) as caught:
    compute([clients.path(c) for c in clients.ids])
  text = str(caught.value)
  assert f"finds a file that is cut, or of another model's examples: {path}. E" in text
  assert "\n" not in text


# --- Machines that round otherwise ------------------------------------------------------


def test_a_worker_of_another_kind_is_refused_by_name(
  client, cluster, monkeypatch, capsys
):
  first, second = sorted(client.nthreads())
  here = dask_worker.machine()
  other = here._replace(processor="Another processor")

  def machine():
    try:
      worker = distributed.get_worker().address
    except ValueError:  # This program itself.
      return here
    return other if worker == second else here

  monkeypatch.setattr(dask_worker, "machine", machine)
  with tff_algos.create_runtime("dask", client=client):
    assert _sum()([1, 2, 3, 4])[1] == 20
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  assert second in said and first not in said
  assert "Another processor" in said and here.processor in said


def test_no_worker_of_this_kind_is_one_sentence(client, monkeypatch):
  here = dask_worker.machine()

  def machine():
    try:
      distributed.get_worker()
    except ValueError:
      return here
    return here._replace(versions="tensorflow 1.15")

  monkeypatch.setattr(dask_worker, "machine", machine)
  with (
    tff_algos.create_runtime("dask", client=client),
    pytest.raises(tff_algos.InputError, match=r"tensorflow 1\.15.*instead of"),
  ):
    _sum()([1, 2])


@pytest.mark.parametrize("when", ["with its jobs", "before them"])
def test_all_lost_but_a_refused_one_is_as_all_lost(monkeypatch, capsys, when):
  """Their jobs are for nobody who is there; those that come now are asked."""
  here = dask_worker.machine()
  monkeypatch.setattr(dask_context, "_POLL_SECONDS", 0.1)
  with (
    distributed.LocalCluster(
      n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster,
    distributed.Client(cluster, set_as_default=False) as client,
  ):
    first, second = sorted(client.nthreads())

    def machine():
      try:
        is_other = distributed.get_worker().address == second
      except ValueError:  # This program itself.
        is_other = False
      return here._replace(processor="Another processor") if is_other else here

    monkeypatch.setattr(dask_worker, "machine", machine)
    lost, later = [], threading.Timer(1, lambda: cluster.scale(3))

    def lose():
      lost.append(first)
      client.retire_workers([first])
      wait_for(lambda: first not in client.nthreads(), 60)
      later.start()

    submit = dask_context.DaskContext._submit

    def watched(self, function, *arguments, **settings):
      if function is dask_tasks.run_parts and not lost:
        lose()
      return submit(self, function, *arguments, **settings)

    monkeypatch.setattr(dask_context.DaskContext, "_submit", watched)
    with tff_algos.create_runtime("dask", client=client) as runtime:
      runtime.context._expected_machine()
      if when == "before them":
        lose()
      assert _sum()([1, 2, 3, 4])[1] == 20
      monkeypatch.setattr(dask_context, "WITHOUT_WORKERS_SECONDS", 0.2)
      client.retire_workers([w for w in client.nthreads() if w != second])
      with pytest.raises(tff_algos.WorkerLostError, match="but such as are not used"):
        _sum()([1, 2])
  assert capsys.readouterr().err.count("is not used") == 1


@pytest.mark.parametrize(
  "options, words",
  [
    ({"constant_folding": False}, "constant_folding=False"),
    pytest.param(
      {"disable_meta_optimizer": True},
      "disable_meta_optimizer=True",
      marks=pytest.mark.thorough,
    ),
  ],
)
def test_what_tensorflow_makes_of_graphs_is_a_machines_setting(
  monkeypatch, options, words
):
  before = dask_worker.machine()
  assert "=False" not in before.settings and "=True" not in before.settings
  there = {**tf.config.optimizer.get_experimental_options(), **options}
  # They cannot be taken back.
  monkeypatch.setattr(tf.config.optimizer, "get_experimental_options", lambda: there)
  assert words in dask_worker.machine().differences(before)


@pytest.mark.parametrize("name", ["TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"])
def test_what_tensorflow_reads_of_the_environment_is_a_machines_setting(
  monkeypatch, name
):
  monkeypatch.setenv(name, "as it is nowhere")
  assert f"{name}=as it is nowhere" in dask_worker.machine().settings


def test_tensor_float_32_is_a_machines_setting(monkeypatch):
  before = dask_worker.machine()
  config = tf.config.experimental
  monkeypatch.setattr(config, "tensor_float_32_execution_enabled", lambda: False)
  assert "tensor_float_32=False" in dask_worker.machine().differences(before)


@pytest.mark.parametrize("is_on", [True, False])
def test_onednn_is_a_machines_setting_whoever_has_set_it(monkeypatch, is_on):
  monkeypatch.setattr(private_apis, "is_onednn_on", lambda: is_on)
  assert f"TF_ENABLE_ONEDNN_OPTS={int(is_on)}" in dask_worker.machine().settings


# --- What is asked for ------------------------------------------------------------------


def test_a_client_of_ones_own_is_left_open(client):
  with tff_algos.create_runtime("dask", client=client) as runtime:
    assert "2 workers with 2 threads" in runtime.notice
    assert _sum()([1])[1] == 2
  assert client.status == "running"
  assert client.submit(lambda: 3).result() == 3


def test_peak_memory_is_that_of_all_workers(on_cluster):
  """Here both are this process, whose peak never falls."""
  before = dask_tasks.peak_memory()
  assert on_cluster.worker_peak_memory() >= 2 * before


def test_nothing_is_left_in_the_folder_after_a_round(client, tmp_path):
  """What clients are given and give may be as large as the models of them all."""
  context = dask_context.DaskContext(client, 1, str(tmp_path))
  with tff.framework.get_context_stack().install(context):
    doubled, total = _sum()([1, 2, 3])
  assert (list(doubled), total) == ([2, 4, 6], 12)
  assert not list(tmp_path.iterdir())
  context.close()


def test_nothing_is_left_in_the_folder_after_a_round_that_failed(client, tmp_path):
  @tff.tensorflow.computation(np.int32)
  def refuse(x):
    with tf.control_dependencies([tf.debugging.Assert(x < 3, ["too large"])]):
      return tf.identity(x)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def keep(given):
    return tff.federated_map(refuse, given)

  context = dask_context.DaskContext(client, 1, str(tmp_path))
  with tff.framework.get_context_stack().install(context):
    assert list(keep([1, 2])) == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
      keep([1, 2, 3, 4, 5, 6, 7])
  assert not list(tmp_path.iterdir())
  context.close()


def test_nothing_is_left_on_the_cluster(client):
  with tff_algos.create_runtime("dask", client=client):
    _sum()([1, 2, 3])

  def held(dask_scheduler):
    return [key for key in dask_scheduler.tasks if str(key).startswith("tff_algos")]

  wait_for(lambda: not client.run_on_scheduler(held), 60)


@pytest.mark.parametrize(
  "settings, words",
  [
    (dict(workers=0), "workers must be at least 1"),
    (dict(workers=10**30), "workers must be at most 1000"),
    (dict(workers=True), "whole number; found True"),
    (dict(workers=1.5), r"whole number; found 1\.5"),
    pytest.param(dict(workers="2"), "found '2'", marks=pytest.mark.thorough),
    (dict(scheduler=8786), "tls://host:8786; found 8786"),
    (dict(client="tcp://127.0.0.1:8786"), "open distributed.Client"),
    (dict(workers=2, scheduler="tcp://127.0.0.1:1"), "one of workers"),
    (dict(scheduler="127.0.0.1:8786"), "tls://host:8786"),
    (dict(scheduler="tls://127.0.0.1:99999"), "tls://host:8786"),
    (dict(scheduler="tcp://192.0.2.1:8786"), "use TLS"),
    (dict(scheduler="tcp://[2001:db8::1]:8786"), "use TLS"),
    (dict(scheduler="tcp://trainer:8786"), "use TLS"),
    (dict(scheduler="tls://127.0.0.1:8786"), "--tls_cert"),
    (
      dict(
        scheduler="tcp://127.0.0.1:8786",
        tls=tff_algos.TlsFiles("ca.pem", "a.pem", "a.key"),
      ),
      "tls://127.0.0.1:8786",
    ),
    (
      dict(
        scheduler="tls://127.0.0.1:8786",
        tls=tff_algos.TlsFiles("ca.pem", "a.pem", "a.key"),
      ),
      "no file ca.pem",
    ),
    (
      dict(scheduler="tls://a:1", tls=tff_algos.TlsFiles(None, "a.pem", "a.key")),
      "authority must be a file's path; found None",
    ),
    (dict(scheduler="tls://a:1", tls=("a", "b", "c")), "tls must be TlsFiles"),
    (dict(workers=2, tls=tff_algos.TlsFiles("a", "b", "c")), "tls is for a scheduler"),
  ],
)
def test_what_cannot_be_is_one_sentence(settings, words):
  with pytest.raises(tff_algos.InputError, match=words):
    tff_algos.create_runtime("dask", **settings)


def test_what_is_no_open_client_is_one_sentence(cluster):
  client = distributed.Client(cluster, set_as_default=False)
  client.close()
  for given in (client, cluster):
    with pytest.raises(tff_algos.InputError, match="open distributed"):
      tff_algos.create_runtime("dask", client=given)


@pytest.mark.parametrize("count", [1.5, pytest.param("2", marks=pytest.mark.thorough)])
def test_a_part_has_a_whole_number_of_clients(count):
  with pytest.raises(tff_algos.InputError, match=f"whole number; found {count!r}"):
    tff_algos.create_runtime("in_process", clients_per_part=count)


def test_without_dask_it_says_what_to_install(monkeypatch):
  monkeypatch.delattr(tff_algos.runtimes, "dask_cluster", raising=False)
  monkeypatch.delitem(sys.modules, "tff_algos.runtimes.dask_cluster", raising=False)
  monkeypatch.setitem(sys.modules, "distributed", None)
  with pytest.raises(tff_algos.InputError, match=r"tff-algos\[cluster\]"):
    tff_algos.create_runtime("dask")


@pytest.mark.parametrize("wanted, used", [("fork", "spawn"), ("forkserver",) * 2])
def test_workers_are_no_copies_of_a_process_that_has_run_tensorflow(
  monkeypatch, wanted, used
):
  found = []

  def start(**options):
    found.append(dask.config.get("distributed.worker.multiprocessing-method"))
    raise OSError("not in this test")

  monkeypatch.setattr(distributed, "SpecCluster", start)
  of_the_user = {"distributed.worker.multiprocessing-method": wanted}
  raised = pytest.raises(tff_algos.WorkerLostError, match="not in this test")
  with dask.config.set(of_the_user), raised:
    tff_algos.create_runtime("dask", workers=1)
  assert found == [used]


def test_a_process_that_may_start_none_is_told_so(monkeypatch):
  in_pool = SimpleNamespace(name="SpawnPoolWorker-1", daemon=True)
  monkeypatch.setattr(multiprocessing, "current_process", lambda: in_pool)
  with pytest.raises(tff_algos.InputError, match="SpawnPoolWorker-1 is daemonic"):
    tff_algos.create_runtime("dask", workers=1)


def test_clusters_closed_in_any_order_leave_what_dask_was_set_to(monkeypatch):
  monkeypatch.setattr(distributed, "SpecCluster", mock.MagicMock())
  monkeypatch.setattr(distributed, "Client", mock.MagicMock())
  log = logging.getLogger("distributed")

  def found():
    names = ("deploy.lost-worker-timeout", "nanny.pre-spawn-environ")
    return [dask.config.get(f"distributed.{name}") for name in names], log.level

  before = found()
  with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
    for stack in (first, second):
      dask_cluster.start(stack, 1)
    inside = found()
    assert inside == (["1d", {}], logging.CRITICAL + 1) != before
    first.close()
    assert found() == inside
    second.close()
    assert found() == before


def test_no_scheduler_is_one_sentence(monkeypatch):
  monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 1)
  with pytest.raises(tff_algos.WorkerLostError, match="No Dask scheduler answers"):
    tff_algos.create_runtime("dask", scheduler="tcp://127.0.0.1:1")


def test_much_that_is_sent_is_not_advised_against(client):
  name = "distributed.admin.large-graph-warning-threshold"
  with (
    dask.config.set({name: "1 kB"}),
    warnings.catch_warnings(),
    tff_algos.create_runtime("dask", client=client),
  ):
    warnings.simplefilter("error")
    assert _sum()(list(range(1000)))[1] == 999 * 1000


def test_a_worker_that_is_given_back_is_not_called_lost(capsys):
  """As where a cluster is made smaller."""
  for expected in (True, False):
    event = dict(action="remove-worker", worker="tcp://a:1", expected=expected)
    dask_errors.tell_of_lost((0.0, event))
    assert ("a:1 was lost" in capsys.readouterr().err) is not expected


def test_workers_are_watched_until_a_clients_last_context_is_closed(
  client, capsys, monkeypatch
):
  """A client has one handler of a topic, whoever set it last."""
  closed = []
  monkeypatch.setattr(client, "unsubscribe_topic", closed.append)
  first, second = (dask_context.DaskContext(client) for _ in range(2))
  first.close()

  def told() -> str:
    # Again and again: the subscription goes another way and may come later.
    client.log_event("all", dict(action="remove-worker", worker="tcp://a:1"))
    return capsys.readouterr().err

  wait_for(lambda: "The worker tcp://a:1 was lost" in told(), 30)
  assert not closed
  second.close()
  assert closed == ["all"]


def test_what_was_taken_from_the_folder_is_removed_at_once(client, tmp_path, monkeypatch):
  """And not when the round ends: its clients' states together may be too large."""
  put, drop = dask_tasks.put, dask_tasks.drop
  written, dropped = [], []
  monkeypatch.setattr(
    dask_tasks, "put", lambda *a: written.append(put(*a)) or written[-1]
  )
  monkeypatch.setattr(dask_tasks, "drop", lambda p: dropped.append(p) or drop(p))
  context = dask_context.DaskContext(client, 1, str(tmp_path))
  with tff.framework.get_context_stack().install(context):
    assert _sum()([1, 2, 3])[1] == 12
  context.close()
  others = written[1:]  # The first is the broadcast.
  assert len(others) > 1 and set(others) == set(dropped)


def test_a_computation_that_goes_is_no_longer_on_the_cluster(client):
  def held(dask_scheduler):
    return [k for k in dask_scheduler.tasks if str(k).startswith("tff_algos_hold")]

  with tff_algos.create_runtime("dask", client=client):
    compute = _sum()
    compute([1, 2])
    assert client.run_on_scheduler(held)
    del compute
    gc.collect()
    wait_for(lambda: not client.run_on_scheduler(held), 30)


def test_dasks_own_default_stays_as_it_was(cluster):
  with contextlib.ExitStack() as stack:
    dask_cluster.connect(stack, cluster.scheduler_address, None)
    with pytest.raises(ValueError, match="No client"):
      distributed.default_client()


def test_workers_here_have_no_limit_and_a_thread_each(monkeypatch):
  """As in_process has none of memory; where there is one Dask kills a worker at it."""
  started, made = mock.MagicMock(), mock.MagicMock()
  monkeypatch.setattr(distributed, "SpecCluster", started)
  monkeypatch.setattr(distributed, "Client", made)
  with contextlib.ExitStack() as stack:
    dask_cluster.start(stack, 3)
  workers = started.call_args.kwargs["workers"].values()
  settings = [(w["options"]["memory_limit"], w["options"]["nthreads"]) for w in workers]
  assert settings == 3 * [(0, 1)]
  assert made.call_args.kwargs["set_as_default"] is False


def test_the_first_cause_is_what_is_said():
  """Dask's own words are of a time that has run out."""
  error = OSError("Timed out trying to connect")
  error.__cause__ = OSError("in: ssl")
  error.__cause__.__cause__ = ConnectionRefusedError("nobody is there.")
  assert dask_cluster._in_short(error) == "nobody is there"
  assert dask_cluster._in_short(ConnectionError()) == "ConnectionError"


def test_an_asynchronous_client_is_refused():
  scheduler = SimpleNamespace(address="inproc://here")
  other = SimpleNamespace(scheduler=scheduler, asynchronous=True)
  with pytest.raises(tff_algos.InputError, match="and not asynchronous; found"):
    dask_cluster.check_client(other)


def test_how_computations_are_run_is_what_a_machine_is_like(monkeypatch):
  """Two checkouts of one version may add in different orders."""
  here = dask_worker.machine()
  monkeypatch.setattr(dask_worker, "_digest", lambda: "another")
  assert dask_worker._unset_machine.__wrapped__().versions != here.versions


def test_a_refused_worker_is_told_of_once(client, capsys):
  """It may have had several jobs when the first of them was refused."""
  here, context = dask_worker.machine(), dask_context.DaskContext(client)
  refused = dask_tasks.Refused("tcp://a:1", here._replace(processor="Another"))
  for _ in range(2):
    context._refuse(refused, here)
  context.close()
  assert capsys.readouterr().err.count("tcp://a:1 is not used") == 1


def test_a_notice_counts_the_threads_of_all_workers():
  scheduler = SimpleNamespace(address="tls://a:1")
  client = SimpleNamespace(
    scheduler=scheduler, cluster=None, nthreads=lambda: {"b": 2, "c": 3}
  )
  said = "dask: the scheduler tls://a:1, now 2 workers with 5 threads"
  assert dask_cluster.notice_of(client) == said
