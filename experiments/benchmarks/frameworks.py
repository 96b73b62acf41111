"""What the benchmark measures; as a program, the process of one measurement.

`measurements.py` starts it and asks on a socket: it answers once when it is ready, and
then every line by a round and the seconds it took. Answers are lines of JSON.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
  from tff_algos import preflight

  preflight.check_and_quiet([])

import abc
import dataclasses
import json
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.jobs import BARE, DATASETS, MIXED_PRECISION, TFF

_EPOCHS = 1
_SEED = 0


# Modules are imported where they are used: the memory of one framework is not to hold
# the code of another.


class Framework(abc.ABC):
  """What is measured; made by `build`."""

  @abc.abstractmethod
  def run(self, round_num: int) -> None:
    """Does a round, with the workload's cohort."""

  @abc.abstractmethod
  def weights(self) -> list[np.ndarray]:
    """The model's weights now."""

  def computation(self, round_num: int) -> Any:
    """What is compiled for the round; the first round of each is reported apart."""
    del round_num


class Bare(Framework):
  """The floor: FedAvg by nothing but TensorFlow, one client after another.

  A dropout layer, if there is one, drops the same places in every step.
  """

  def __init__(self, workload: workloads.Workload):
    import tensorflow as tf

    model = workload.model()
    self._clients = [
      (tf.constant(x), tf.constant(y)) for x, y in workload.clients().values()
    ]
    self._weights = tuple(map(tf.constant, model.initial_weights))
    self._zeros = tuple(map(tf.zeros_like, self._weights))
    self._cohort = workload.cohort
    batch_size, no_seed = workload.batch_size, tf.zeros([2], tf.int32)
    rate = workload.learning_rate

    @tf.function(autograph=False)
    def train(start, total, x, y, order):
      n = tf.shape(order)[0]

      def body(place, weights):
        rows = order[place : place + batch_size]
        with tf.GradientTape() as tape:
          tape.watch(weights)
          batch = model.preprocess(tf.gather(x, rows))
          predictions = model.predict(weights, batch, True, no_seed)
          loss = tf.reduce_mean(model.example_losses(tf.gather(y, rows), predictions))
        gradient = tape.gradient(loss, weights)
        weights = tuple(w - rate * g for w, g in zip(weights, gradient))
        return place + batch_size, weights

      place = tf.constant(0)
      _, weights = tf.while_loop(lambda place, _: place < n, body, (place, start))
      return tuple(t + tf.cast(n, tf.float32) * w for t, w in zip(total, weights))

    x, y = self._clients[0]
    order = tf.TensorSpec([len(y)], tf.int32)
    self._train = train.get_concrete_function(self._weights, self._zeros, x, y, order)

  def run(self, round_num: int) -> None:
    """Shuffles anew in every round, as the others do."""
    draw = np.random.default_rng(round_num)
    cohort = self._cohort(round_num)
    self.run_in_order((p, draw.permutation(len(self._clients[p][1]))) for p in cohort)

  def run_in_order(self, orders: Iterable[tuple[int, np.ndarray]]) -> None:
    """Does a round of clients, by their places, with each one's order of examples."""
    import tensorflow as tf

    total, count = self._zeros, 0
    for place, order in orders:
      x, y = self._clients[place]
      order = tf.constant(order, tf.int32)
      total = self._train(self._weights, total, x, y, order)
      count += len(y)
    self._weights = tuple(t / count for t in total)
    self._weights[-1].numpy()  # Waits for a device that computes on its own.

  def weights(self) -> list[np.ndarray]:
    """The model's weights now."""
    return [w.numpy() for w in self._weights]


class Ours(Framework):
  """A process of this library on one of its runtimes, driven as a user would.

  Attributes:
    runtime: The runtime, which is installed.
  """

  def __init__(
    self,
    workload: workloads.Workload,
    runtime: str,
    algorithm: str,
    folder: str,
    mixed_precision: bool = False,
    **settings: Any,
  ):
    from tff_algos.algorithms import registry
    from tff_algos.runtimes import runtime as runtimes
    from tff_algos.simulation import client_state_store

    if runtime == "local_worker":
      settings["worker_log"] = f"{workload.name}-{runtime}-{algorithm}-worker.log"
    self.runtime = runtimes.create_runtime(runtime, **settings).install()
    model = workload.model(mixed_precision)
    self._cohort = workload.cohort
    self._clients = workload.client_files(folder, model.example_spec)
    row = registry.get(algorithm)
    local = dict(
      epochs=_EPOCHS,
      batch_size=workload.batch_size,
      learning_rate=workload.learning_rate,
    )
    known = {field.name for field in dataclasses.fields(row.hparams_class)}
    hparams = row.hparams_class(**{k: v for k, v in local.items() if k in known})
    self._process = row.build(
      model,
      hparams,
      num_clients=workload.num_clients,
      num_examples=workload.num_clients * workload.num_examples,
    )
    self._state = self._process.initialize()
    self._states = client_state_store.ClientStateStore(self._process.initialize_client())

  def computation(self, round_num: int) -> Any:
    """An algorithm may have rounds of several kinds."""
    return self._process.next_of(round_num)

  def run(self, round_num: int) -> None:
    """The round and what a user has to do around it."""
    places = self._cohort(round_num)
    output = self._process.next_of(round_num)(
      self._state, self._states.get(places), self.inputs(round_num)
    )
    self._state = output.state
    self._states.put(places, output.client_states)

  def inputs(self, round_num: int) -> list[Any]:
    """What the clients of the round's cohort are handed."""
    from tff_algos.simulation import client_inputs

    return client_inputs.of_cohort(
      self._clients, self._cohort(round_num), _SEED, round_num
    )

  def weights(self) -> list[np.ndarray]:
    """The model's weights now."""
    return list(self._process.get_model_weights(self._state).trainable)


class OverDatasets(Ours):
  """A process of this library over data sets that hold the examples in memory."""

  def __init__(self, workload: workloads.Workload, algorithm: str, folder: str):
    import tensorflow as tf

    from tff_algos.templates import views

    super().__init__(workload, "in_process", algorithm, folder)
    self._process = views.over_datasets(self._process)
    self._datasets = [
      tf.data.Dataset.from_tensor_slices(examples)
      for examples in workload.clients().values()
    ]

  def inputs(self, round_num: int) -> list[Any]:
    """The data sets of the round's cohort."""
    return [self._datasets[place] for place in self._cohort(round_num)]


class Tff(Framework):
  """`tff.learning`'s FedAvg on TFF's own local runtime, datasets from Python."""

  def __init__(self, workload: workloads.Workload):
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_algos.runtimes import child_process

    # TFF starts its worker with no thought of when that ends.
    child_process.end_children_with_this_process()
    tff.backends.native.set_sync_local_cpp_execution_context()
    model = workload.model()
    no_seed = np.zeros([2], np.int32)

    @tf.function(autograph=False)
    def predict(weights, x, training):
      trainable, _ = weights
      return model.predict(trainable, model.preprocess(x), training, no_seed)

    def loss(output, label, sample_weight=None):
      del sample_weight
      return tf.reduce_mean(model.example_losses(label, output))

    spec = tf.nest.map_structure(
      lambda s: tf.TensorSpec([None, *s.shape], s.dtype), tuple(model.example_spec)
    )
    self._process = tff.learning.algorithms.build_weighted_fed_avg(
      tff.learning.models.FunctionalModel(
        initial_weights=(model.initial_weights, ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=spec,
      ),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(workload.learning_rate),
    )
    self._datasets = [
      tf.data.Dataset.from_tensor_slices((x, y))
      .shuffle(len(y))
      .batch(workload.batch_size)
      for x, y in workload.clients().values()
    ]
    self._cohort = workload.cohort
    self._state = self._process.initialize()

  def run(self, round_num: int) -> None:
    """A round of `tff.learning`."""
    datasets = [self._datasets[place] for place in self._cohort(round_num)]
    self._state = self._process.next(self._state, datasets).state

  def weights(self) -> list[np.ndarray]:
    """The model's weights now."""
    return list(self._process.get_model_weights(self._state).trainable)


def build(workload: str, framework: str, algorithm: str, folder: str) -> Framework:
  """Makes what is to be measured.

  Args:
    workload: A name of `workloads.WORKLOADS`.
    framework: A name of `program.framework_names()`.
    algorithm: A name of `algorithms.registry`; only our runtimes heed it.
    folder: For the client files, which measurements share.
  """
  row = workloads.get(workload)
  if framework == BARE:
    return Bare(row)
  if framework == TFF:
    return Tff(row)
  if framework == DATASETS:
    return OverDatasets(row, algorithm, folder)
  if framework == MIXED_PRECISION:
    return Ours(row, "in_process", algorithm, folder, mixed_precision=True)
  return Ours(row, framework, algorithm, folder)


def build_evaluation(workload: workloads.Workload) -> Callable[[Framework], object]:
  """Makes this library's evaluation on the test examples; whatever the framework."""
  from tff_algos.simulation import evaluation

  means = evaluation.build_evaluation(workload.model(), *workload.test_examples())
  return lambda framework: means(tuple(framework.weights()))


def serve(channel: socket.socket, *what: str) -> None:
  """Sets up, and then does what is asked until nothing more is.

  Args:
    channel: Where questions come from and answers go to.
    *what: The arguments of `build`.
  """

  def answer(**content: Any) -> None:
    channel.sendall(json.dumps(content).encode() + b"\n")

  try:
    framework, run = build(*what), workloads.get(what[0]).run
    if run:
      evaluate = build_evaluation(workloads.get(what[0]))
      evaluate(framework)  # Else what it compiles would be in what is measured.
    answer()
    compiled: list[Any] = []
    for round_num, _ in enumerate(channel.makefile()):
      computation = framework.computation(round_num)
      is_first = not any(computation is known for known in compiled)
      compiled.append(computation)
      start = time.perf_counter()
      framework.run(round_num)
      seconds = dict(seconds=time.perf_counter() - start)
      if run and round_num % run.eval_every == 0:
        start = time.perf_counter()
        evaluate(framework)
        seconds["evaluation_seconds"] = time.perf_counter() - start
      answer(is_first=is_first, **seconds)
  except Exception as error:
    traceback.print_exc()
    answer(failure=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    sys.exit(1)


if __name__ == "__main__":
  # For algorithms of the user's own, which were found from there.
  sys.path.append(sys.argv[2])
  serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[3:])
