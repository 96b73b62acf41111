"""Trains one federated-learning algorithm on one task.

  python binaries/train.py --algorithm=fedgg --task=digits_cnn

`--list` shows the algorithms and tasks; `--algorithm=NAME --help` the flags of one. A run
that was stopped early ends with status 75, and `--run_dir=DIR --resume` goes on with it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Sequence
from typing import Optional

from absl import flags

from experiments import command_line, run_options, training_flags
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry

_LIST = flags.DEFINE_boolean("list", False, "List the algorithms and tasks, and end.")
_RESUME = flags.DEFINE_boolean(
  "resume",
  False,
  "Go on with the run that --run_dir holds, from its newest checkpoint; start it if "
  "there is none.",
)
flags.DEFINE_string(
  "algorithm",
  "fedavg",
  f"One of {', '.join(algorithms_registry.ALGORITHMS)}; or module:attribute, an "
  "algorithm of your own: its builder, or a tff_algos.Algorithm.",
)
flags.DEFINE_string(
  "task",
  "digits_cnn",
  f"One of {', '.join(tasks_registry.TASKS)}; or module:attribute, a "
  "tasks.registry.Task of your own.",
)
flags.DEFINE_integer("rounds", None, "Rounds in all; default: the task's.")
flags.DEFINE_integer(
  "num_clients",
  None,
  "All clients (N); default: the task's, or as many roles, users or sources as its data "
  "have.",
)
flags.DEFINE_integer(
  "clients_per_round", None, "Clients of one round; default: the task's."
)
flags.DEFINE_string(
  "partition",
  None,
  "How the examples are split over the clients: name or name:key=value,..., such as "
  "iid, shards:shards_per_client=2, dirichlet:beta=0.1; default: the task's.",
)
flags.DEFINE_integer(
  "partition_seed", 0, "Seed of the split, so that repeats with other --seed share it."
)
flags.DEFINE_integer("seed", 0, "Seed of weights, cohorts, shuffles and noise.")
flags.DEFINE_string(
  "run_dir", None, "Folder for the results; default: a new one under runs/."
)
flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of the data set: a TFDS folder or, for CIFAR-10, one with train/ and test/ "
  "pictures, or what the publisher of another set hands out; default: TFDS's own.",
)
flags.DEFINE_string(
  "cache_dir", "~/.cache/tff_algos", "Folder for prepared client data, used again."
)
flags.DEFINE_integer("eval_every", 1, "Rounds between evaluations on the test set.")
flags.DEFINE_integer(
  "checkpoint_every", 10, "Rounds between checkpoints; 0: only when stopped."
)
flags.DEFINE_float(
  "target_accuracy", None, "Report the first round that reaches it, 0 to 1."
)
flags.DEFINE_string(
  "runtime", "in_process", "in_process, local_worker or remote_workers."
)
flags.DEFINE_integer(
  "threads",
  None,
  "Clients worked on at once on each device of in_process; default: one on a GPU, on the "
  "CPU one for each core.",
)
flags.DEFINE_list(
  "devices",
  None,
  "Where in_process places clients, in turn: GPU:0,GPU:1; default: all GPUs, else CPU:0.",
)
flags.DEFINE_list(
  "workers",
  None,
  "The workers of remote_workers, started by binaries/worker.py: host:port,...",
)
flags.DEFINE_string(
  "worker_certificate",
  None,
  "What remote_workers shows the workers, a PEM file; without it, its key and its "
  "authority: they run with --trusted_network.",
)
flags.DEFINE_string("worker_key", None, "The certificate's private key, a PEM file.")
flags.DEFINE_string(
  "worker_authority",
  None,
  "The certificate of the authority that signed the workers', a PEM file.",
)
run_options.define()


def _parse(argv: Sequence[str]) -> list[str]:
  rest = training_flags.parse(argv)
  if not _LIST.value:
    config = training_flags.config()
    if not flags.FLAGS.quiet:
      print(
        f"{config.algorithm} on {config.task}: loading TensorFlow and data", flush=True
      )
    from experiments import runner  # noqa: F401 - which imports TensorFlow.
  return rest


def main() -> Optional[int]:
  """Runs what the flags say."""
  if _LIST.value:
    training_flags.print_list()
    return None
  from experiments import runner

  summary = runner.run(
    training_flags.config(), resume=_RESUME.value, quiet=flags.FLAGS.quiet
  )
  return command_line.STOPPED_EARLY if summary["stopped_early"] else None


if __name__ == "__main__":
  command_line.start(main, _parse)
