"""docs/several_machines.md's cluster of jobs, with dask-jobqueue's stand-in for Slurm."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]

_BEFORE = """
import sys
import numpy as np
import tensorflow_federated as tff
import tff_algos

double = tff.tensorflow.computation(lambda n: 2 * n, np.int32)

@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def compute(numbers):
  return tff.federated_sum(tff.federated_map(double, numbers))

def main():
"""

pytestmark = pytest.mark.packaging


def test_jobs_are_the_workers_that_the_page_makes(uv, pypi, certificates, tmp_path):
  page = (_ROOT / "docs/several_machines.md").read_text()
  [code] = re.findall(r"```python no-run: it needs Slurm\n(.*?)```", page, re.DOTALL)
  code = code.replace(
    "dask_jobqueue import SLURMCluster", "dask_jobqueue.local import LocalCluster"
  )
  code = code.replace("SLURMCluster", "LocalCluster").replace("/shared/home", ".")
  code = re.sub(r'"(\w+\.(?:pem|key))"', rf'"{certificates}/\1"', code)
  code = code.replace("maximum=50", "maximum=3")
  asked = "print(client.scheduler.address, len(client.nthreads()) and compute([1, 2, 3]))"
  code = code.replace("  ...", f"  client.wait_for_workers(2)\n  {asked}")
  body = "".join(f"  {line}\n" for line in code.splitlines())
  program = tmp_path / "program.py"
  program.write_text(f'{_BEFORE}{body}\nif __name__ == "__main__":\n  main()\n')
  with open(tmp_path / "log", "w") as log, open(tmp_path / "out", "w") as out:
    subprocess.run(
      [uv, "run", "--project", str(_ROOT), "--with=dask-jobqueue", "python", program],
      cwd=tmp_path,
      stdin=subprocess.DEVNULL,
      stdout=out,
      stderr=log,
      timeout=300,
      check=True,
    )
  address, total = (tmp_path / "out").read_text().split()[-2:]
  assert address.startswith("tls://") and "127.0.0.1" not in address
  assert total == "12"
