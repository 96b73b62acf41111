"""Parts of a cohort on one of Dask's workers: what in_process does, elsewhere."""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib.metadata
import itertools
import os
import pathlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import distributed
import tensorflow as tf

from tff_algos.runtimes import (
  accumulation,
  dask_tasks,
  execution,
  in_process,
  private_apis,
  values,
)
from tff_algos.runtimes.dask_tasks import Done, Failed, Job, Machine, Packed, Refused
from tff_algos.runtimes.processor import processor

_PACKAGES = ("tff-algos", "tensorflow", "tensorflow-federated", "numpy")

# Of programs that build process after process, the last ones.
_MOST_PLANS = 16


class _Devices(threading.local):
  """The device of each of the worker's threads; they take them in turn."""

  _next = itertools.count()

  def __init__(self) -> None:
    found = in_process.prepare()
    self.device = found[next(self._next) % len(found)]


_HERE = _Devices()
_PLANS: collections.OrderedDict[str, execution.Plan] = collections.OrderedDict()
_PLANNING = threading.Lock()


def machine() -> Machine:
  """What of this process decides how results are rounded."""
  found = _unset_machine()
  # A program may set TensorFlow otherwise at any time.
  threads = tf.config.threading.get_intra_op_parallelism_threads()
  return found._replace(settings=settings(threads))


@functools.cache
def _unset_machine() -> Machine:
  devices = in_process.prepare()
  gpus = tf.config.list_physical_devices("GPU") if "GPU" in devices[0] else []
  kinds = {
    tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    for gpu in gpus
  }
  versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
  return Machine(
    processor=processor(),
    device=", ".join(sorted(kinds)) or "CPU",
    versions=f"{', '.join(versions)}, runtimes {_digest()}",
    settings="",
  )


def settings(threads_of_operation: int) -> str:
  """Those of TensorFlow that change results."""
  onednn = int(private_apis.is_onednn_on())
  found = (
    f"threads for an operation {threads_of_operation}, TF_ENABLE_ONEDNN_OPTS={onednn}"
  )
  # What TensorFlow makes of a graph. Those that it names though nobody has set them are
  # named disable_...: False.
  options = tf.config.optimizer.get_experimental_options()
  changed = {k: v for k, v in options.items() if v or not k.startswith("disable_")}
  if tf.config.optimizer.get_jit():
    changed["jit"] = True
  if not tf.config.experimental.tensor_float_32_execution_enabled():
    changed["tensor_float_32"] = False
  for name in ("TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"):
    if os.environ.get(name):
      changed[name] = os.environ[name]
  return ", ".join([found, *(f"{name}={value}" for name, value in changed.items())])


def _digest() -> str:
  """Of the files that say how a computation is run and in which order it adds."""
  files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
  return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


def plan_of(computation: bytes) -> execution.Plan:
  """The plan of a compiled computation, as `execution.Plan.serialized` gives it."""
  key = hashlib.sha256(computation).hexdigest()
  with _PLANNING:
    plan = _PLANS.pop(key, None)
    if plan is None:
      comp = private_apis.parse_computation(computation)
      plan = execution.Plan(comp, is_compiled=True)
    _PLANS[key] = plan
    while len(_PLANS) > _MOST_PLANS:
      _PLANS.popitem(last=False)
  return plan


def run_parts(computation: bytes, broadcast: Packed, job: Job) -> Done | Refused | Failed:
  """As `dask_tasks.run_parts`."""
  worker = distributed.get_worker().address
  here = machine()
  if here != job.machine:
    return Refused(worker, here)
  own: list[list[list[Any]]] = []
  # Only its unit of work has been begun when an error is met.
  begun = range(0)

  def in_order(
    function: Callable[[str, range], Any], arguments: Iterable[range]
  ) -> Iterator[Any]:
    nonlocal begun
    for begun in arguments:
      yield function(_HERE.device, begun)

  try:
    plan = plan_of(computation)
    cohort = _cohort(plan, dask_tasks.take(broadcast), dask_tasks.take(job.own), job)
    own = list(cohort.own.values())
    tree = accumulation.Tree(cohort.sums)
    kept: list[list[Any]] = [[] for _ in plan.kept_of(cohort.work)]
    with private_apis.safe_for_threads(), tf.device(_HERE.device):
      for part in plan.run_parts(cohort, [_HERE.device], in_order):
        tree.add(part.totals)
        for every, (node, of_clients) in zip(kept, part.kept.items()):
          every += (values.to_portable(node.type, leaves) for leaves in of_clients)
      totals = [values.to_numpy(leaf) for leaf in tree.total()]
    return Done(dask_tasks.put((totals, kept), job.folder))
  # Whatever it is: Dask would try it again elsewhere, and TensorFlow's cannot be sent.
  except Exception as error:
    return Failed(
      worker=worker,
      kind=type(error).__name__,
      message=getattr(error, "message", str(error)),
      client=job.first + begun.start if len(begun) == 1 else None,
      given=_texts(own, begun.start) if len(begun) == 1 else [],
      trace=traceback.format_exc(),
    )


def _cohort(
  plan: execution.Plan, broadcast: list[Any], own_values: list[list[Any]], job: Job
) -> execution.Cohort:
  level = plan.levels[job.level]
  work = level.work_of(job.num_clients, on_gpu=False)  # As planned at the driver.
  shared = [n for n in work.inputs if n.kind == "broadcast"]
  own = [n for n in work.inputs if n.kind != "broadcast"]
  ends = itertools.accumulate(job.sizes)
  return execution.Cohort(
    level=job.level,
    work=work,
    sums=level.sums,
    broadcast=dict(zip(shared, broadcast)),
    own={
      n: [values.from_portable(n.type, leaves) for leaves in of_clients]
      for n, of_clients in zip(own, own_values)
    },
    num_clients=job.num_clients,
    parts=[range(end - n, end) for n, end in zip(job.sizes, ends)],
  )


def _texts(own: list[list[list[Any]]], client: int) -> list[str]:
  """Of what a client was given; a data set is bytes only while it is sent."""
  leaves = (leaf for of_clients in own for leaf in of_clients[client])
  return [leaf.decode(errors="replace") for leaf in leaves if isinstance(leaf, bytes)]
