"""What a run measured round by round, and the numbers that papers take from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from experiments.markdown import count
from experiments.run_folder.reading import Run, default_metric


class Curve(NamedTuple):
  """What was measured of one run, up to the rounds that were asked for.

  Attributes:
    rounds: The rounds after which the model was evaluated, ascending.
    accuracy: Test accuracy after each of them, 0..1; NaN where the model has none.
    loss: Test loss after each of them, nats.
    round_bytes: Mean bytes down and up of a round, all clients.
    round_seconds: Median seconds of a round.
    seconds: Of all rounds and evaluations, those on clients too.
    note: What to say beside its numbers, such as "JPEG CIFAR-10".
    machines: Processor, cores and GPUs of each session, as far as the run says; no GPUs
      where it did not use them.
    clients: The median client's accuracy, 0..1, whenever all were evaluated.
    client_rounds: The rounds after which they were.
    held_out: The median accuracy of clients that never train, 0..1, when last they were
      evaluated; None: never.
  """

  rounds: Sequence[int]
  accuracy: Sequence[float]
  loss: Sequence[float]
  round_bytes: float
  round_seconds: float
  seconds: float
  note: str
  machines: Sequence[str]
  clients: Sequence[float] = ()
  client_rounds: Sequence[int] = ()
  held_out: Optional[float] = None


#: `(curve, reference curve or None) -> number`, or None where it was not reached.
Measure = Callable[[Curve, Optional[Curve]], Optional[float]]


_CLIENTS, _HELD_OUT = "client_accuracy_p50", "held_out_accuracy_p50"
_EVALUATIONS = ("evaluation_seconds", "client_evaluation_seconds")


def first_rounds(run: Run, rounds: int) -> Optional[Curve]:
  """What a run measured in its first rounds; None if it has not done so many.

  A run that goes on, or was stopped because it diverged, counts once it has them. One
  whose algorithm has no test accuracy has no evaluated rounds.
  """
  records = [record for record in run.records if record["round"] <= rounds]
  metric = default_metric([run])
  measured = [r for r in records if r.get(metric) is not None]
  is_measured_later = any(r.get(metric) is not None for r in run.records)
  if len(records) < rounds or (is_measured_later and not measured):
    return None
  of_clients = [r for r in records if r.get(_CLIENTS) is not None]
  of_held_out = [r[_HELD_OUT] for r in records if r.get(_HELD_OUT) is not None]
  seconds = [record["seconds"] for record in records]
  return Curve(
    rounds=[record["round"] for record in measured],
    accuracy=[record.get("test_accuracy", math.nan) for record in measured],
    loss=[record.get("test_loss", math.nan) for record in measured],
    round_bytes=statistics.mean(r["bytes_down"] + r["bytes_up"] for r in records),
    round_seconds=statistics.median(seconds[1:] or seconds),
    seconds=sum(seconds) + sum(r.get(n) or 0.0 for r in records for n in _EVALUATIONS),
    note=run.data.get("note", ""),
    machines=_machines(run),
    clients=[record[_CLIENTS] for record in of_clients],
    client_rounds=[record["round"] for record in of_clients],
    held_out=of_held_out[-1] if of_held_out else None,
  )


def _machines(run: Run) -> list[str]:
  devices = run.flags.get("devices") or ["GPU"]
  on_gpus = run.flags.get("runtime") != "local_worker" and "GPU" in "".join(devices)
  every = [session.get("machine") for session in run.sessions]
  return [_described(machine, on_gpus) for machine in every if machine]


def _described(machine: Mapping[str, Any], on_gpus: bool) -> str:
  gpus = machine.get("gpus") or []
  if isinstance(gpus, int):  # Older runs do not say which.
    gpus = [f"{gpus} GPUs"]
  used = gpus if on_gpus else []
  return ", ".join([machine["processor"], count(machine["cores"], "core"), *used])


def at_common_rounds(curves: Sequence[Curve]) -> list[Curve]:
  """Curves of the rounds that all of them have measured.

  The last round of a run is measured out of turn, and a run of more rounds than are asked
  for has not measured that one.
  """
  if not curves:
    return []
  rounds = sorted(set.intersection(*(set(c.rounds) for c in curves)))
  client_rounds = sorted(set.intersection(*(set(c.client_rounds) for c in curves)))

  def cut(curve: Curve) -> Curve:
    accuracy, loss, clients = (
      dict(zip(places, values))
      for places, values in (
        (curve.rounds, curve.accuracy),
        (curve.rounds, curve.loss),
        (curve.client_rounds, curve.clients),
      )
    )
    return curve._replace(
      rounds=rounds,
      accuracy=[accuracy[t] for t in rounds],
      loss=[loss[t] for t in rounds],
      clients=[clients[t] for t in client_rounds],
      client_rounds=client_rounds,
    )

  return [cut(curve) for curve in curves]


def by_round(curves: Sequence[Curve]) -> Iterator[tuple[int, list[float], list[float]]]:
  """Each evaluated round with the accuracies and losses of all runs of a cell."""
  for k, t in enumerate(curves[0].rounds if curves else ()):
    yield t, [c.accuracy[k] for c in curves], [c.loss[k] for c in curves]


def deviation(values: Sequence[float]) -> Optional[float]:
  """Sample standard deviation; None below two values, NaN if one is not finite."""
  if len(values) < 2:
    return None
  return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def best(curve: Curve, reference: Optional[Curve] = None) -> Optional[float]:
  """The highest test accuracy of all rounds."""
  del reference
  return max((a for a in curve.accuracy if math.isfinite(a)), default=None)


def final(curve: Curve, reference: Optional[Curve] = None) -> Optional[float]:
  """The test accuracy after the last round."""
  del reference
  return curve.accuracy[-1] if has_accuracy([curve]) else None


def least_loss(curve: Curve, reference: Optional[Curve] = None) -> Optional[float]:
  """The least test loss of all rounds."""
  del reference
  return min((loss for loss in curve.loss if math.isfinite(loss)), default=None)


def has_accuracy(curves: Iterable[Curve]) -> bool:
  """Whether test accuracy was measured of one of them."""
  return any(not math.isnan(a) for curve in curves for a in curve.accuracy)


def best_of_clients(curve: Curve, reference: Optional[Curve] = None) -> Optional[float]:
  """The highest of the median client's accuracies."""
  del reference
  return max((a for a in curve.clients if math.isfinite(a)), default=None)


def of_held_out(curve: Curve, reference: Optional[Curve] = None) -> Optional[float]:
  """The median held-out client's accuracy, when last they were evaluated."""
  del reference
  return curve.held_out


def first_round_at(curve: Curve, target: float) -> Optional[int]:
  """The first round after which test accuracy is at least the target."""
  return next((t for t, a in zip(curve.rounds, curve.accuracy) if a >= target), None)


def rounds_to(target: float) -> Measure:
  """A column's value: `first_round_at` a fixed target."""
  return lambda curve, _: first_round_at(curve, target)


def interpolated_rounds_to(target: float) -> Measure:
  """A column's value: where the best accuracy so far crosses the target.

  Linear between the rounds that were evaluated [paper, McMahan et al. 2017, Section 3].
  """

  def value(curve: Curve, reference: Optional[Curve]) -> Optional[float]:
    del reference
    before: Optional[tuple[int, float]] = None
    for t, a in zip(curve.rounds, curve.accuracy):
      if math.isnan(a):
        continue
      if a >= target:
        if before is None:
          return float(t)
        share = (target - before[1]) / (a - before[1])
        return before[0] + share * (t - before[0])
      before = (t, a if before is None else max(a, before[1]))
    return None

  return value


def rounds_to_share_of_best(share: float) -> Measure:
  """A column's value: the first round at that share of the reference's best accuracy.

  R_a of FedReg [paper, Section 4.2].
  """

  def value(curve: Curve, reference: Optional[Curve]) -> Optional[float]:
    highest = None if reference is None else best(reference)
    return None if highest is None else first_round_at(curve, share * highest)

  return value


def rounds_to_final_of_reference(
  curve: Curve, reference: Optional[Curve]
) -> Optional[float]:
  """The first round at the reference's last accuracy; its last round for itself.

  FedGG [paper, Section 4.3], whose tables give FedAvg 100 of 100 rounds.
  """
  if reference is None:
    return None
  if curve is reference:
    return curve.rounds[-1]
  return first_round_at(curve, reference.accuracy[-1])


def speedup(curve: Curve, reference: Optional[Curve]) -> Optional[float]:
  """The reference's rounds over `rounds_to_final_of_reference` [paper, FedGG 4.3]."""
  found = rounds_to_final_of_reference(curve, reference)
  return None if found is None or reference is None else reference.rounds[-1] / found


def relative_cost(target: float) -> Measure:
  """A column's value: bytes to the target over the reference's, C. cost of TWAFL.

  Rounds to the target times mean bytes of a round [paper, TWAFL Table VII].
  """

  def value(curve: Curve, reference: Optional[Curve]) -> Optional[float]:
    if reference is None:
      return None
    ours, theirs = first_round_at(curve, target), first_round_at(reference, target)
    if ours is None or theirs is None:
      return None
    return ours * curve.round_bytes / (theirs * reference.round_bytes)

  return value


def seconds_of_a_round(
  curve: Curve, reference: Optional[Curve] = None
) -> Optional[float]:
  """The median seconds of a round, the first apart."""
  del reference
  return curve.round_seconds


def relative_seconds(curve: Curve, reference: Optional[Curve]) -> Optional[float]:
  """`seconds_of_a_round` over the reference's."""
  return None if reference is None else curve.round_seconds / reference.round_seconds
