"""The flags of train.py beyond the task's and the algorithm's: how a run is simulated."""

from __future__ import annotations

import sys

from absl import flags


def define() -> None:
  """Defines them."""
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  flags.DEFINE_boolean(
    "quiet", False, "Print nothing but errors and the last line, the summary.", **place
  )
  flags.DEFINE_string(
    "stop_at",
    None,
    "End the run, with status 0, after the first evaluation whose test metric is as good "
    "as this: accuracy:0.95, loss:0.2.",
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
    "metrics.csv has the 10th, 50th and 90th percentile and the worst of their "
    "accuracies. 0: none.",
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
  flags.DEFINE_string(
    "learning_rate_schedule",
    None,
    "By what --learning_rate is multiplied in round t = 0, 1, ...: "
    "exponential:decay=0.99, decay^t; step:every=50,factor=0.1, factor^floor(t / every); "
    "cosine:rounds=100,final=0, half a cosine from 1 to final, over the run's rounds "
    "where none are given.",
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
