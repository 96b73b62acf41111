"""Measures seconds of a round and memory against a bare TensorFlow loop.

  python binaries/benchmark.py --workload=A,C --framework=bare,in_process,tff
  python binaries/benchmark.py --framework=in_process --algorithm=fedavg,fedgg,scaffold
  python binaries/benchmark.py --framework=bare,in_process --workload=pfl_cifar10

Every measurement is a process of its own. The rounds of those of a workload are
interleaved, so that whatever else the machine does meets all of them; all are in memory
at once, with about 1 GB each. The first round, which compiles, is reported apart.
Exit status: 1 if a measurement failed, 2 if the flags are wrong.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments import command_line
from experiments.benchmarks import program, workloads
from experiments.benchmarks.jobs import BASELINE

flags.DEFINE_list(
  "workload", ["A"], f"Some of {', '.join(workloads.WORKLOADS)}, with commas between."
)
flags.DEFINE_list(
  "framework",
  ["bare", "in_process", "local_worker", "tff"],
  "bare (TensorFlow alone), tff (tff.learning's FedAvg on TFF's own runtime), datasets "
  "(in_process over data sets, not files), mixed_precision (in_process with the network "
  "in bfloat16) or runtimes of ours, with commas between.",
)
flags.DEFINE_list(
  "algorithm",
  [BASELINE],
  "What our runtimes run, as train.py --list shows them, with commas between.",
)
flags.DEFINE_integer("rounds", 5, "Rounds besides the first, which compiles.", 1)
flags.DEFINE_string(
  "out", None, "Folder for the results, new or empty; default: a new one under runs/."
)


def main() -> int:
  """Measures what the flags say; the exit status."""
  values = flags.FLAGS
  return program.run(
    program.Request(
      workloads=values.workload,
      frameworks=values.framework,
      algorithms=values.algorithm,
      rounds=values.rounds,
      out=values.out and os.path.expanduser(values.out),
    )
  )


if __name__ == "__main__":
  command_line.start(main)
