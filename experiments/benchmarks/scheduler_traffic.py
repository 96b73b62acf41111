"""Measures what passes through a Dask scheduler in a round.

  python experiments/benchmarks/scheduler_traffic.py A,C,D

One line of JSON for each workload: the bytes that the scheduler's sockets have received
and sent, per round, on a cluster of two workers with a scheduler in a process of its own,
and the size of the model's weights.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
  from tff_algos import preflight

  preflight.check_and_quiet([])

import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator

import distributed

from experiments.benchmarks import frameworks, workloads

_ROUNDS = 5


def sockets_bytes(process_id: int) -> tuple[int, int]:
  """What a process has received and sent by the connections that it has now."""
  command = ["ss", "--tcp", "--info", "--processes", "--no-header", "--oneline"]
  lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  own = [line for line in lines.splitlines() if f"pid={process_id}," in line]

  def total(name: str) -> int:
    found = (re.search(rf"\b{name}:(\d+)", line) for line in own)
    return sum(int(match[1]) for match in found if match)

  return total("bytes_received"), total("bytes_sent")


@contextlib.contextmanager
def _cluster() -> Iterator[tuple[int, str]]:
  """A scheduler's process and address; with two workers."""
  quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    file = f"{folder}/scheduler.json"

    def start(*words: str) -> subprocess.Popen:
      command = [sys.executable, "-m", "dask", *words, *quiet, "--scheduler-file", file]
      log = stack.enter_context(open(f"{folder}/{words[0]}.log", "w", encoding="utf-8"))
      process = subprocess.Popen(command, stdout=log, stderr=log)
      stack.callback(process.wait)
      stack.callback(process.terminate)
      return process

    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
    while True:
      with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as f:
        address = json.load(f)["address"]
        break
      time.sleep(0.1)
    start("worker", "--nworkers", "2", "--nthreads", "1", "--memory-limit", "0")
    yield scheduler.pid, address


def main(names: list[str]) -> None:
  """Measures the workloads of these names."""
  for name in names:
    row = workloads.get(name)
    with (
      tempfile.TemporaryDirectory() as folder,
      _cluster() as (process_id, address),
      distributed.Client(address, set_as_default=False) as client,
    ):
      client.wait_for_workers(2)
      ours = frameworks.Ours(row, "dask", "fedavg", folder, client=client)
      ours.run(0)
      before = sockets_bytes(process_id)
      for round_num in range(1, 1 + _ROUNDS):
        ours.run(round_num)
      after = sockets_bytes(process_id)
      received, sent = ((b - a) // _ROUNDS for a, b in zip(before, after))
      print(
        json.dumps(
          {
            "workload": name,
            "weights_bytes": sum(w.nbytes for w in ours.weights()),
            "received_bytes_per_round": received,
            "sent_bytes_per_round": sent,
          }
        ),
        flush=True,
      )
      ours.runtime.close()


if __name__ == "__main__":
  main(sys.argv[1].split(","))
