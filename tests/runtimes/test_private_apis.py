"""What is taken from inside TensorFlow and TFF is in one file, and may go on its own."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.runtimes import blocks, private_apis

_INSIDE = ("tensorflow.python", "tensorflow.core", "tensorflow_federated.python")
_LIBRARY = pathlib.Path(private_apis.__file__).parents[1]


def _imports(path: pathlib.Path) -> set[str]:
  """The modules, and what may be one, that a file imports."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      found |= {f"{node.module}.{name.name}" for name in node.names}
  return found


def test_one_file_imports_from_inside_others():
  files = {path for path in _LIBRARY.rglob("*.py")}
  assert len(files) > 50
  found = {p for p in files if any(i.startswith(_INSIDE) for i in _imports(p))}
  assert found == {pathlib.Path(private_apis.__file__)}


def test_forms_that_tensorflow_has_are_left_alone(monkeypatch):
  registry = private_apis._pfor_converter_registry
  assert private_apis.has_vectorised_form("Relu")
  before = registry["Relu"]
  private_apis.add_vectorised_form("Relu", lambda pfor_input: None)
  assert registry["Relu"] is before
  # As it would be if TensorFlow had come to know both of ours.
  for name in ("L2Loss", "TopKV2"):
    monkeypatch.setitem(registry, name, before)
  spec = importlib.util.spec_from_file_location("again", blocks.__file__)
  spec.loader.exec_module(importlib.util.module_from_spec(spec))
  assert registry["L2Loss"] is before


# What is measured depends on all that TensorFlow has done before.
_LEAK = """
  import gc, tracemalloc
  import tensorflow as tf
  from tff_algos.runtimes import in_process

  in_process.prepare()
  tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(2)])
  tracemalloc.start()

  def held():
    for _ in range(3000):
      tf.identity(1.0)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]

  before = held()
  print((held() - before) / 6000)
"""


@pytest.mark.thorough
def test_tensors_leave_little_behind():
  command = [sys.executable, "-c", textwrap.dedent(_LEAK)]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
  # 16 are TensorFlow's on Python 3.11, and 48 without ours.
  assert float(done.stdout) < 24


def test_calls_beside_a_runtime_are_optimized_as_they_were():
  """What is set for its own functions is not left to the program's."""
  from tensorflow.python.eager import context as tf_context

  with private_apis.safe_for_threads():
    inside = tf_context.context().function_call_options.config_proto_serialized
  before = tf_context.context().function_call_options.config_proto_serialized
  with tff_algos.create_runtime():
    assert tff.tensorflow.computation(lambda x: x + 1, np.int32)(1) == 2
  after = tf_context.context().function_call_options.config_proto_serialized
  assert after == before != inside


def test_forms_for_own_inputs_are_for_one_thread_at_a_time():
  """They change what is TensorFlow's for all, and put it back."""
  entered = threading.Event()

  def enter():
    with private_apis.forms_for_own_inputs({}):
      entered.set()

  other = threading.Thread(target=enter)
  with private_apis.forms_for_own_inputs({}):
    other.start()
    assert not entered.wait(0.2)
  assert entered.wait(30)
  other.join()


def test_a_function_is_made_ready_once():
  """By one of the threads that call it first, and not by each for itself."""
  from tensorflow.python.eager import context as tf_context

  def deep(x):
    for _ in range(300):
      x = tf.tanh(x @ x)
    return [x]

  traced = tf.function(deep, autograph=False)
  call = private_apis.flat_call(
    traced.get_concrete_function(tf.TensorSpec([None, None], tf.float32))
  )
  x, together, results = 0.5 * tf.eye(3), threading.Barrier(4), []

  def work():
    with private_apis.safe_for_threads():
      together.wait()
      results.extend(call(x))

  threads = [threading.Thread(target=work) for _ in range(4)]
  context = tf_context.context()
  context.enable_graph_collection()
  try:
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    graphs = context.export_run_metadata().function_graphs
  finally:
    context.disable_graph_collection()
  made = [node.op for graph in graphs for node in graph.post_optimization_graph.node]
  assert made.count("MatMul") == 300
  for result in results:
    np.testing.assert_array_equal(result, results[0])
  assert len(results) == 4
