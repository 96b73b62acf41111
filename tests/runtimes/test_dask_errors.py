"""What a worker's error comes as."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tff_algos.errors import InputError, UnsupportedComputationError
from tff_algos.runtimes import dask_errors
from tff_algos.runtimes.dask_tasks import Failed

_WHERE = "Client 3 of the cohort (/data/a) on the worker tcp://10.0.0.1:5: "


def _error(kind: str) -> Exception:
  given = Failed("tcp://10.0.0.1:5", kind, "It failed.", 3, ["/data/a"], "Line 7")
  return dask_errors.error_of(given)


@pytest.mark.parametrize("kind", [InputError, UnsupportedComputationError])
def test_ours_are_one_sentence(kind):
  error = _error(kind.__name__)
  assert type(error) is kind and str(error) == f"{_WHERE}It failed."
  assert error.__cause__ is None


@pytest.mark.parametrize(
  "kind", [MemoryError, ValueError, ZeroDivisionError, tf.errors.ResourceExhaustedError]
)
def test_tensorflows_and_pythons_are_of_their_kind(kind):
  error = _error(kind.__name__)
  assert type(error) is kind and str(error) == f"{_WHERE}It failed."
  assert "Line 7" in str(error.__cause__)


@pytest.mark.parametrize(
  "kind",
  ["OwnError", "UnicodeDecodeError", "KeyError", "BrokenPipeError", "StopIteration"],
)
def test_what_cannot_be_made_again_says_its_kind(kind):
  error = _error(kind)
  assert type(error) is RuntimeError and str(error) == f"{kind}: {_WHERE}It failed."
  assert "Line 7" in str(error.__cause__)
