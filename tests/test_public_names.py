"""What `tff_algos` offers: each name is there, documented, and shown to the user."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tff_algos.algorithms import registry
from tff_algos.models import functional

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PYTHON_PAGE = (_ROOT / "docs/python.md").read_text(encoding="utf-8")
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
# Inline code and blocks, where a name stands for itself.
_CODE = " ".join(
  code
  for page in _PAGES
  for code in re.findall(
    r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL
  )
)


@pytest.mark.parametrize("name", tff_algos.__all__)
def test_name_is_documented_and_shown(name):
  value = getattr(tff_algos, name)
  assert getattr(value, "__name__", "").rpartition(".")[2] == name
  own = value.__doc__ or ""
  # What dataclasses and named tuples get where nobody has written anything.
  assert own.strip() and not own.startswith(f"{name}(")
  assert re.search(rf"\b{name}\b", _CODE), "in no code of README.md or docs/*.md"


def test_names_are_those_of_the_stub():
  stub = (_ROOT / "tff_algos/__init__.pyi").read_text(encoding="utf-8")
  names = re.findall(r"\b(\w+) as (\w+)", stub)
  assert all(name == alias for name, alias in names)
  assert sorted(name for name, _ in names) == tff_algos.__all__ == dir(tff_algos)


def test_every_algorithm_is_public():
  for row in registry.ALGORITHMS.values():
    for value in (row.builder, row.hparams_class):
      assert getattr(tff_algos, value.__name__) is value


@pytest.mark.parametrize("name", ["schedules", "tree_math"])
def test_module_is_found_before_anything_else_is(name):
  code = f"import tff_algos; print(tff_algos.{name}.__name__)"
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=False
  )
  assert done.stdout.strip().endswith(f".{name}"), done.stderr


def test_unknown_name_is_an_attribute_error():
  with pytest.raises(AttributeError, match="no_such_name"):
    tff_algos.no_such_name  # noqa: B018


# --- The algorithms of docs/python.md -------------------------------------------------


@pytest.fixture(scope="module")
def written():
  """What the page's code defines."""
  blocks = re.findall(r"^```python\n(.*?)^```$", _PYTHON_PAGE, re.MULTILINE | re.DOTALL)
  # Dataclasses look their module up.
  module = sys.modules["fed_avg_m"] = types.ModuleType("fed_avg_m")
  for code in blocks:
    exec(code, module.__dict__)
  yield module
  del sys.modules["fed_avg_m"]


class Problem(NamedTuple):
  """Two clients, a linear model of zeros, and how they train."""

  model: functional.Model
  clients: tff_algos.ClientDirectory
  local: dict[str, float]

  def weights_after(self, rounds, process):
    settings = tff_algos.Settings(rounds=rounds, clients_per_round=2)
    state = tff_algos.simulate(process, self.clients, settings).state
    return process.get_model_weights(state).trainable[0]


@pytest.fixture
def problem(in_process, tmp_path):
  spec = tff_algos.ExampleSpec(tf.TensorSpec([3]), tf.TensorSpec([], tf.int32))
  model = functional.Model(
    initial_weights=(np.zeros((3, 2), np.float32),),
    weight_names=("w",),
    example_spec=spec,
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
  )
  draw = np.random.default_rng(0)
  data = {
    name: (draw.normal(size=(5, 3)).astype(np.float32), np.int32([0, 1, 0, 1, 1]))
    for name in ("a", "b")
  }
  clients = tff_algos.write_clients(str(tmp_path), data, spec)
  return Problem(model, clients, dict(epochs=2, batch_size=2, learning_rate=0.2))


def test_algorithm_of_the_page_is_fed_avg_with_momentum(written, problem):
  """x(t+1) = x(t) + v(t), where v has a share of v(t-1) that FedAvg's step has not."""
  [row] = written.ALGORITHMS
  hparams = row.hparams_class(server_momentum=0.5, **problem.local)
  process = row.build(problem.model, hparams, num_clients=2, num_examples=10)
  plain = tff_algos.build_fed_avg(problem.model, tff_algos.FedAvgHparams(**problem.local))
  first = problem.weights_after(1, process)
  np.testing.assert_array_equal(first, problem.weights_after(1, plain))
  second, plain_second = (problem.weights_after(2, p) for p in (process, plain))
  # Both take the same step from the same model; x^0 = 0, so that v(1) = x(1).
  np.testing.assert_allclose(second - plain_second, 0.5 * first, rtol=1e-5, atol=1e-7)
  assert np.abs(first).max() > 1e-3


def test_process_of_the_page_sends_half_the_bytes(written, problem):
  """x^0 = 0 is itself as float16, x^1 is not."""
  hparams = tff_algos.FedAvgHparams(**problem.local)
  half = written.build_half_sent(problem.model, hparams)
  whole = tff_algos.build_fed_avg(problem.model, hparams)
  for way in ("down", "up"):
    sent, all_sent = (getattr(p.traffic[""], way)["model"] for p in (half, whole))
    assert (sent, all_sent) == (2 * 6, 4 * 6)
  first, whole_first = (problem.weights_after(1, p) for p in (half, whole))
  rounding = 2**-11 * np.abs(whole_first).max()
  np.testing.assert_allclose(first, whole_first, rtol=0, atol=rounding)
  second, whole_second = (problem.weights_after(2, p) for p in (half, whole))
  np.testing.assert_allclose(second, whole_second, rtol=0, atol=1e-3)
  assert (second != whole_second).any()
