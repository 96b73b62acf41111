"""The workloads of the benchmark, and the names that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import program, workloads
from tff_algos.errors import InputError


def test_unknown_names_are_refused():
  with pytest.raises(InputError, match="choose from A, B"):
    workloads.get("a")
  names = ["bare", "in_process", "local_worker", "dask", "datasets", "tff"]
  assert program.framework_names() == names


@pytest.mark.parametrize("row", workloads.WORKLOADS.values(), ids=lambda row: row.name)
def test_examples_fit_the_model_and_are_the_same_everywhere(row):
  row = row._replace(num_clients=2, num_examples=3)
  spec = row.model().example_spec
  for client in row.clients():
    x, y = row.clients()[client]
    assert x.shape == (3, *spec.x.shape) and x.dtype == spec.x.dtype.as_numpy_dtype
    assert y.shape == (3,) and set(y) <= set(range(row.data.num_classes))
    np.testing.assert_array_equal(x, row.clients()[client][0])
