"""The flags of a run beyond its algorithm's own: task, split, simulation, runtime."""

from __future__ import annotations

import sys

from absl import flags

from tasks import registry as tasks_registry
from tff_algos.aggregators import table as aggregators


def define() -> None:
  """Defines them."""
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  flags.DEFINE_string(
    "task",
    "digits_cnn",
    f"One of {', '.join(tasks_registry.TASKS)}; or module:attribute, a "
    "tasks.registry.Task of your own.",
    **place,
  )
  flags.DEFINE_integer("rounds", None, "Rounds in all; default: the task's.", **place)
  flags.DEFINE_integer(
    "num_clients",
    None,
    "All clients (N); default: the task's, or as many roles, users or sources as its "
    "data have.",
    **place,
  )
  flags.DEFINE_integer(
    "clients_per_round", None, "Clients of one round; default: the task's.", **place
  )
  flags.DEFINE_string(
    "partition",
    None,
    "How the examples are split over the clients: name or name:key=value,..., such as "
    "iid, shards:shards_per_client=2, dirichlet:beta=0.1; default: the task's.",
    **place,
  )
  flags.DEFINE_integer(
    "partition_seed",
    0,
    "Seed of the split, so that repeats with other --seed share it.",
    **place,
  )
  flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of the data set: a TFDS folder or, for CIFAR-10, one with train/ and test/ "
    "pictures, or what the publisher of another set hands out; default: TFDS's own.",
    **place,
  )
  flags.DEFINE_string(
    "cache_dir",
    "~/.cache/tff_algos",
    "Folder for prepared client data, used again.",
    **place,
  )
  flags.DEFINE_integer(
    "eval_every", 1, "Rounds between evaluations on the test set.", **place
  )
  flags.DEFINE_integer(
    "checkpoint_every", 10, "Rounds between checkpoints; 0: only when stopped.", **place
  )
  flags.DEFINE_float(
    "target_accuracy",
    None,
    "Report the first round that reaches it, above 0 and at most 1; default: the task's.",
    **place,
  )
  flags.DEFINE_string(
    "runtime", "in_process", "in_process, local_worker or dask.", **place
  )
  flags.DEFINE_integer(
    "threads",
    None,
    "Clients worked on at once on each device of in_process; default: one on a GPU, on "
    "the CPU one for each core.",
    **place,
  )
  flags.DEFINE_list(
    "devices",
    None,
    "Where in_process places clients, in turn: GPU:0,GPU:1; default: all GPUs, else "
    "CPU:0.",
    **place,
  )
  flags.DEFINE_integer(
    "clients_per_part",
    None,
    "So many clients' results are added one after the other, and these sums joined in a "
    "fixed tree; a part is also what dask gives a worker at once. Other parts round "
    "otherwise. Default: as many as give at most 16 parts, and at least a block, of 16 "
    "to 128 on a CPU, of clients that are worked on in blocks.",
    **place,
  )
  flags.DEFINE_integer(
    "workers",
    None,
    "How many processes dask starts on this machine, where it has no --scheduler; "
    "default: one for each GPU, else for each core.",
    **place,
  )
  flags.DEFINE_string(
    "scheduler",
    None,
    "The Dask scheduler to use, such as tls://host:8786; default: a cluster of "
    "processes on this machine alone.",
    **place,
  )
  flags.DEFINE_string(
    "tls_ca_file",
    None,
    "The certificate of the authority that has signed those of --scheduler's cluster, a "
    "PEM file; without it, --tls_cert and --tls_key: those of Dask's configuration.",
    **place,
  )
  flags.DEFINE_string(
    "tls_cert",
    None,
    "The certificate that this program shows, a PEM file.",
    **place,
  )
  flags.DEFINE_string(
    "tls_key", None, "The certificate's private key, a PEM file.", **place
  )
  flags.DEFINE_list(
    "tracker",
    ["tensorboard"],
    "Who is told of the rounds besides the folder: tensorboard, whose events are in "
    "it, mlflow, wandb; the last two are to be installed. Empty: nobody.",
    **place,
  )
  flags.DEFINE_boolean(
    "quiet", False, "Print nothing but errors and the last line, the summary.", **place
  )
  flags.DEFINE_string(
    "stop_at",
    None,
    "End the run, with status 0, after the first evaluation whose test metric is as good "
    "as this: accuracy:0.95, loss:0.2; -NAME:VALUE of one of which less is better.",
    **place,
  )
  flags.DEFINE_integer(
    "patience",
    None,
    "End the run, with status 0, after so many evaluations in a row without improvement, "
    "of --stop_at's metric or of test accuracy.",
    **place,
  )
  flags.DEFINE_integer(
    "eval_clients_every",
    0,
    "Rounds between evaluations of the global model on each client's own examples; "
    "metrics.csv has the 10th, 50th and 90th percentile and the worst of their losses "
    "and accuracies. 0: none.",
    **place,
  )
  flags.DEFINE_integer(
    "held_out_clients",
    0,
    "So many clients, drawn by --seed, never train; --eval_clients_every has them apart.",
    **place,
  )
  flags.DEFINE_integer(
    "personalize_steps",
    0,
    "In the evaluations of --eval_clients_every each client takes so many steps of SGD "
    "for itself on one half of its examples, and the other half is evaluated before and "
    "after.",
    **place,
  )
  flags.DEFINE_float(
    "loss_epsilon",
    0.0,
    "The task's cross-entropy, -log(p) for p the probability of the label, becomes "
    "-log(p + loss_epsilon): what is all but impossible to the model pulls no more. "
    "FedReg's authors have 1e-12, and 1e-30 in FedReg [code]. At least 0, less than 1.",
    **place,
  )
  flags.DEFINE_boolean(
    "mixed_precision",
    False,
    "The task's network computes in bfloat16, its weights and gradients stay float32: "
    "where the processor has instructions for it, large convolutions are faster.",
    **place,
  )
  flags.DEFINE_string(
    "learning_rate_schedule",
    None,
    "By what --learning_rate is multiplied in round t = 0, 1, ...: "
    "exponential:decay=0.99, decay^t; step:every=50,factor=0.1, factor^floor(t / every); "
    "cosine:rounds=100,final=0, half a cosine from 1 to final, over the run's rounds "
    "where none are given.",
    **place,
  )
  flags.DEFINE_string(
    "aggregator",
    None,
    "What aggregates the model's part of the messages: "
    + "; ".join(f"{k}, {row.description}" for k, row in aggregators.AGGREGATORS.items())
    + ". Such as trimmed_mean:share=0.2, dp:noise_multiplier=0.5, which must be below a "
    "tenth of --clients_per_round. Default: the algorithm's own, mostly the mean.",
    **place,
  )
  flags.DEFINE_float(
    "norm_limit",
    None,
    "Drop and count clients whose update's norm is more than so many times the median of "
    "the last rounds, above 1, such as 10; default: none.",
    **place,
  )
  flags.DEFINE_float(
    "dropout",
    0.0,
    "The probability, less than 1, that a client of a round's cohort drops out of it.",
    **place,
  )
  flags.DEFINE_string(
    "client_duration",
    None,
    "How many seconds clients take for a round, drawn for each client and round: "
    "lognormal:mean=10,sigma=0.5,speed_sigma=0.5, where sigma is how much a client's "
    "rounds differ and speed_sigma how much clients do (standard deviations of the "
    "logarithm). These seconds are not waited for.",
    **place,
  )
  flags.DEFINE_float(
    "round_deadline",
    None,
    "Results of clients that take longer than these seconds do not count; needs "
    "--client_duration.",
    **place,
  )
