"""Measures forgetting before the rounds of a run, for forgetting.py."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Optional

from experiments.config import make_hparams
from experiments.forgetting.records import (
  FISHER,
  FORGETTING,
  ROUNDS_BACK,
  TABLE,
  FisherRow,
  Row,
  RowFile,
)
from experiments.preparation import Prepared, build
from experiments.run_folder.folder import CHECKPOINTS
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry
from tff_algos.client_work.local_sgd import PlainSgd
from tff_algos.diagnostics import fisher as fisher_lib
from tff_algos.diagnostics import forgetting
from tff_algos.errors import InputError
from tff_algos.simulation import checkpoints, loop


class Meter:
  """Measures before the rounds of the driver's run.

  Attributes:
    settings: What the measurements depend on besides the run's own settings.
  """

  def __init__(
    self,
    prepared: Prepared,
    algorithms: Sequence[str],
    given: Mapping[str, Mapping[str, Any]],
    fisher: bool,
  ):
    """Builds everything, and writes nothing yet.

    Args:
      prepared: The driver's run.
      algorithms: What is measured.
      given: Hyper-parameters of each algorithm that differ from the task's.
      fisher: Whether to correlate the Fisher information of FedReg's pseudo data.

    Raises:
      InputError: An algorithm cannot be measured, or the folder lacks measurements of
        rounds that are done.
    """
    if prepared.settings.learning_rate_schedule is not None:
      raise InputError(
        "The local models that are measured are trained at one learning rate, and this "
        "run has a learning_rate_schedule: measure a run without."
      )
    self._prepared, self._started = prepared, False
    self._model, self._clients = prepared.loaded.model, prepared.loaded.clients
    hparams = {name: self._hparams_of(name, given) for name in algorithms}
    run_dir = prepared.config.run_dir
    described = {name: dataclasses.asdict(h) for name, h in hparams.items()}
    self.settings = {"algorithms": described, "fisher": fisher}
    self._local_models = {name: self._build(name, h) for name, h in hparams.items()}
    self._measure = forgetting.build_forgetting(self._model)
    self._rows = RowFile(os.path.join(run_dir, FORGETTING), Row)
    self._fisher_rows = RowFile(os.path.join(run_dir, FISHER), FisherRow)
    self._check_measured(FORGETTING, self._rows, of_clients_before=1)
    self._correlate: Optional[Callable[..., float]] = None
    if fisher:
      self._check_measured(FISHER, self._fisher_rows, of_clients_before=0)
      of_data = fisher_lib.build_fisher(self._model)
      of_pseudo_data = fisher_lib.build_pseudo_fisher(
        self._model, self._hparams_of("fedreg", given)
      )

      def correlate(start, client_input, paths):
        weights, pseudo = of_pseudo_data(start, client_input)
        return fisher_lib.correlation(pseudo, of_data(weights, paths))

      self._correlate = correlate

  def _hparams_of(self, name: str, given: Mapping[str, Any]) -> Any:
    task = tasks_registry.get(self._prepared.config.task)
    return make_hparams(registry.get(name), task, given[name])

  def _build(self, name: str, hparams: Any):
    config = self._prepared.config
    if not isinstance(hparams, PlainSgd) or registry.get(name).is_personal:
      raise InputError(
        f"{name} has no local models that predict and could forget: leave it out."
      )
    is_driver = name == config.algorithm
    if is_driver:
      process = self._prepared.process
    else:
      prepared = self._prepared
      plain = dataclasses.replace(
        config, algorithm=name, aggregator=None, norm_limit=None
      )
      process = build(plain, prepared.loaded, hparams, prepared.settings)
    try:
      local_models = forgetting.build_local_models(self._model, process)
    except InputError as error:
      raise InputError(f"{name}: {error}") from error
    state_type = process.initialize.type_signature.result.member
    remembers = not process.is_stateless or len(state_type.variables.extra)
    if remembers and not is_driver:
      raise InputError(
        f"{name} keeps something from round to round, which it would not have in a "
        f"run of {config.algorithm}: leave it out, or measure it by itself with "
        f"--driver={name} --algorithms={name}."
      )
    return local_models

  def _check_measured(self, name: str, rows: RowFile, *, of_clients_before: int) -> None:
    """Raises `InputError` where a round is done whose clients lack some of their rows."""
    run_dir = self._prepared.config.run_dir
    done = checkpoints.rounds_done(os.path.join(run_dir, CHECKPOINTS)) or 0
    every, found = self._prepared.config.eval_every, rows.count()
    # Not those that are asked for now: that others were is said elsewhere.
    algorithms = {algorithm for _, algorithm in found} or {""}
    for t in range(2, done + 1):
      due = len(self._cohort(t - of_clients_before))
      if t % every == 0 and any(found[t, algorithm] < due for algorithm in algorithms):
        raise InputError(
          f"{run_dir} has {done} rounds, but {name} lacks measurements of round {t}: "
          "measure anew, in another --run_dir."
        )

  def __call__(self, start: loop.RoundStart) -> None:
    """Measures, if it is this round's turn."""
    this = start.rounds_done + 1
    if not self._started:
      self._started = True
      # Of what there was until now; by it others see that a folder is whole.
      table = os.path.join(self._prepared.config.run_dir, TABLE)
      with contextlib.suppress(FileNotFoundError):
        os.remove(table)

      def keeps(t: int) -> bool:
        # Not one that was measured only because it was to be the last.
        return t < this and self._is_measured(t)

      self._rows.cut(keeps)
      if self._correlate is not None:
        self._fisher_rows.cut(keeps)
    if not self._is_measured(this):
      return
    self._rows.add(self._forgetting_rows(this, start))
    if self._correlate is not None:
      self._fisher_rows.add(self._correlation_rows(this, start, self._correlate))

  def _is_measured(self, this: int) -> bool:
    config = self._prepared.config
    return this >= 2 and (this % config.eval_every == 0 or this >= config.rounds)

  def _cohort(self, this: int) -> list[str]:
    """The clients of a round, counted from 1."""
    found = self._prepared.settings.attendance(len(self._clients), this - 1)
    return [self._clients.ids[place] for place in found.taking_part]

  def _forgetting_rows(self, this: int, start: loop.RoundStart) -> list[Row]:
    before = self._cohort(this - 1)
    spec = self._model.example_spec
    examples = [self._clients.examples(client, spec) for client in before]
    rows = []
    for name, local_models in self._local_models.items():
      if name == self._prepared.config.algorithm:
        trained = local_models(
          start.state.variables, start.client_states, start.client_inputs
        )
      else:
        trained = local_models(
          start.state.variables._replace(extra=()),
          [()] * len(start.client_inputs),
          start.client_inputs,
        )
      found = self._measure(start.state.variables.model, trained, examples)
      rows += [Row(this, name, *values) for values in zip(before, *found)]
    return rows

  def _correlation_rows(
    self, this: int, start: loop.RoundStart, correlate: Callable[..., float]
  ) -> list[FisherRow]:
    rounds = range(max(1, this - ROUNDS_BACK), this)
    clients = sorted({client for t in rounds for client in self._cohort(t)})
    paths = [self._clients.path(client) for client in clients]
    model = start.state.variables.model
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
      found = pool.map(
        lambda client_input: correlate(model, client_input, paths),
        start.client_inputs,
      )
      return [FisherRow(this, *pair) for pair in zip(self._cohort(this), found)]
