"""The settings of a run: what is given, over a run's own, over the task's."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from programs import ROOT

from experiments import config, training_flags
from experiments.run_folder.folder import completed
from tasks import registry as tasks_registry
from tff_algos.aggregators import table as aggregators
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError
from tff_algos.simulation.stopping import StopRule


def test_hparams_go_to_all_that_have_them_or_to_the_one_that_is_named():
  words = ["epochs=3", "fedreg:gamma=0.5", "batch_size=inf", "momentum=0.9"]
  assert config.parse_hparams(words, ["fedavg", "fedreg"]) == {
    "fedavg": dict(epochs=3, batch_size=None, momentum=0.9),
    "fedreg": dict(gamma=0.5, epochs=3, batch_size=None),
  }
  assert config.parse_hparams([], ["fedreg"]) == {"fedreg": {}}


@pytest.mark.parametrize(
  "word", ["epochs", "epochs=x", "gama=1", "fedprox:epochs=2", "fedavg:gamma=1"]
)
def test_hparams_that_nobody_has_are_named(word):
  with pytest.raises(InputError, match=word):
    config.parse_hparams([word], ["fedavg", "fedreg"])


@pytest.mark.parametrize(
  "word, value",
  [
    *((f"is_doubled={text}", False) for text in ("False", "false", "0")),
    *((f"is_doubled={text}", True) for text in ("True", "TRUE", "1")),
    ("clip=0.5", 0.5),
    ("clip=inf", None),
  ],
)
def test_hparams_are_of_their_fields_types(word, value):
  given = config.parse_hparams([word], ["own_algorithms:good"])
  assert given == {"own_algorithms:good": {word.partition("=")[0]: value}}


@pytest.mark.parametrize(
  "word, said",
  [
    ("is_doubled=no", "is_doubled must be true or false; found 'no'"),
    ("is_doubled=", "is_doubled must be true or false; found ''"),
    ("clip=x", "clip must be a number or inf; found 'x'"),
    ("batch_size=2.5", "batch_size must be a whole number or inf; found '2.5'"),
    ("epochs=inf", "epochs must be a whole number; found 'inf'"),
  ],
)
def test_hparams_of_another_type_are_refused(word, said):
  with pytest.raises(InputError, match=rf"^--hparams: '{word}': {re.escape(said)}\.$"):
    config.parse_hparams([word], ["own_algorithms:good"])


def test_an_optional_flag_is_of_its_fields_type():
  row = algorithms_registry.get("own_algorithms:good")
  fields = {field.name: field for field in dataclasses.fields(row.hparams_class)}
  assert training_flags.hparam_value("good_clip", fields["clip"], "0.5") == 0.5
  assert training_flags.hparam_value("good_clip", fields["clip"], "inf") is None
  said = r"^--good_clip must be a number or inf; found 'x'\.$"
  with pytest.raises(InputError, match=said):
    training_flags.hparam_value("good_clip", fields["clip"], "x")


@pytest.mark.parametrize("file", ["docs/training.md", "experiments/run_options.py"])
def test_aggregators_that_are_shown_are_for_the_default_task(file):
  text = (ROOT / file).read_text(encoding="utf-8")
  shown = re.findall(r"\b(?:dp|trimmed_mean):\w+=[\d.]*\d", text)
  assert len(shown) == 2
  for spec in shown:
    size = _make().clients_per_round
    aggregators.make(spec, clients_per_round=size)


# --- A run's settings ---------------------------------------------------------------


def _make(**given) -> config.Config:
  return config.make_config("fedavg", "digits_cnn", **given)


def test_settings_that_are_not_given_are_the_tasks():
  row = tasks_registry.get("digits_cnn")
  made = _make(rounds=None, seed=5)
  for name in ("rounds", "partition", "num_clients", "clients_per_round"):
    assert getattr(made, name) == getattr(row, name)
  assert (made.seed, made.hparams) == (5, {})


@pytest.mark.parametrize("algorithm, target", [("fedavg", 0.99), ("pfedgp", None)])
def test_tasks_target_is_of_a_model_that_predicts_by_itself(algorithm, target):
  assert config.make_config(algorithm, "mnist_cnn").target_accuracy == target


def test_cohort_of_the_task_is_at_most_all_clients():
  row = tasks_registry.get("digits_cnn")
  assert _make(num_clients=row.clients_per_round - 1).clients_per_round == (
    row.clients_per_round - 1
  )


def test_settings_that_are_given_are_over_those_that_are_held():
  held = _make(rounds=7, seed=3, run_dir="a", hparams={"epochs": 2, "learning_rate": 0.5})
  again = _make(held=dataclasses.asdict(held), seed=4, hparams={"epochs": 1})
  assert again == dataclasses.replace(
    held, seed=4, hparams={"epochs": 1, "learning_rate": 0.5}
  )


def test_settings_of_another_version_are_left_out():
  assert _make(held={"rounds": 7, "a_flag_of_old": 3}).rounds == 7


@pytest.mark.parametrize(
  "wrong", [{"partition": "shard"}, {"hparams": {"epochs": 0}}, {"hparams": {"mu": 1.0}}]
)
def test_split_and_hyper_parameters_are_checked_but_not_those_of_an_older_run(wrong):
  with pytest.raises(InputError):
    _make(**wrong)
  assert _make(held=wrong).rounds == _make().rounds


def test_what_does_nothing_is_refused_and_an_older_run_with_it_goes_on():
  held = dict(
    algorithm="fedavg",
    task="digits_cnn",
    data_dir="/data",
    clients_per_part=2,
    runtime="local_worker",
  )
  config.make_config("fedavg", "digits_cnn", held=held, clients_per_part=2)
  with pytest.raises(InputError, match="digits_cnn reads no data_dir"):
    config.make_config("fedavg", "digits_cnn", held=held, data_dir="/other")
  with pytest.raises(InputError, match="clients_per_part is not for local_worker"):
    config.make_config("fedavg", "digits_cnn", held=held, clients_per_part=3)
  with pytest.raises(InputError, match="clients_per_part is not for local_worker"):
    config.make_config("fedavg", "digits_cnn", runtime="local_worker", clients_per_part=2)


def test_another_runtime_leaves_the_settings_of_the_first():
  held = {"runtime": "dask", "workers": 3, "tls_cert": "a.pem", "clients_per_part": 2}
  made = _make(held=held, runtime="in_process")
  assert (made.workers, made.tls_cert, made.clients_per_part) == (None, None, 2)
  assert _make(held=held).workers == _make(held=held, runtime="dask").workers == 3


def test_a_run_of_older_times_without_workers_has_none():
  """They wrote an empty list; a list is for Dask alone."""
  assert _make(held={"runtime": "in_process", "workers": []}).workers is None


def test_a_kept_run_whose_aggregator_trims_nobody_goes_on():
  settings = dict(aggregator="trimmed_mean", clients_per_round=5)
  with pytest.raises(InputError, match=r"none of 5 with share=0\.1"):
    _make(**settings)
  assert _make(held=settings).aggregator == "trimmed_mean"


def test_what_an_older_run_was_given_besides_its_runtime_is_left_out():
  """Else it could not be gone on with: there is no flag that takes it away."""
  unused = {"threads": 2, "devices": ["CPU:0"]}
  for runtime in ("dask", "local_worker"):
    made = _make(held={"runtime": runtime, **unused})
    assert (made.runtime, made.threads, made.devices) == (runtime, None, None)
    assert _make(held={"runtime": runtime, **unused}, threads=3).threads == 3
  for held in (unused, {"runtime": "in_process", **unused}):
    assert _make(held=held).threads == 2


@pytest.mark.parametrize(
  "given, said",
  [
    ({"learnin_rate": 0.1}, "fedavg has no hyper-parameter learnin_rate: it has "),
    ({"learning_rate": -1.0}, "learning_rate"),
    ({"epochs": "two"}, "epochs"),
    ({"batch_size": 2.5}, "batch_size"),
  ],
)
def test_hparam_that_cannot_be_one_is_named(given, said):
  algorithm, task = algorithms_registry.get("fedavg"), tasks_registry.get("digits_cnn")
  with pytest.raises(InputError, match=said):
    config.make_hparams(algorithm, task, given)


def test_hparams_are_given_over_the_tasks_over_the_algorithms():
  algorithm = algorithms_registry.get("fedavg")
  task = tasks_registry.get("digits_cnn")._replace(
    hparams={"epochs": 3, "batch_size": 7, "not_of_fedavg": 1}
  )
  made = config.make_hparams(algorithm, task, {"epochs": 2})
  assert (made.epochs, made.batch_size, made.server_learning_rate) == (2, 7, 1.0)


@pytest.mark.parametrize(
  "spec, found",
  [
    ("cosine", "cosine:rounds=30"),
    ("cosine:final=0.1", "cosine:final=0.1,rounds=30"),
    ("cosine:rounds=7", "cosine:rounds=7"),
    ("cosine:", "cosine:rounds=30"),
    ("exponential:decay=0.9", "exponential:decay=0.9"),
  ],
)
def test_cosine_keeps_the_rounds_that_it_began_with(spec, found):
  """Gone on with for more rounds, its first rounds are to be the same."""
  made = _make(rounds=30, learning_rate_schedule=spec)
  assert made.learning_rate_schedule == found
  again = _make(held=dataclasses.asdict(made), rounds=60)
  assert again.learning_rate_schedule == found


def test_what_older_folders_do_not_name_is_the_default():
  """Their runs are repeats of those that name it, and go on as these."""
  defaults = {f.name: f.default for f in dataclasses.fields(config.Config)}
  added = completed("flags", {})
  assert added and added.items() <= defaults.items()


def test_nothing_ends_a_run_whose_rule_is_taken_away():
  held = dataclasses.asdict(_make(stop_at="loss:0.5", patience=3))
  assert _make(held=held).stop_rule() == StopRule("loss", 0.5, 3)
  assert _make(held=held, stop_at="").stop_rule() == StopRule("accuracy", None, 3)
  assert _make(held=held, patience=0).stop_rule() == StopRule("loss", 0.5)
  assert _make(held=held, stop_at="", patience=0).stop_rule() is None


@pytest.mark.parametrize("target", ["95", "1.01", "0", "-0.5", "nan", "inf"])
def test_an_accuracy_that_no_model_reaches_is_no_target(target):
  with pytest.raises(InputError, match=rf"must be in \(0, 1\]; found {target}\.$"):
    _make(stop_at=f"accuracy:{target}")
  with pytest.raises(InputError, match=rf"must be in \(0, 1\]; found {target}\.$"):
    _make(target_accuracy=float(target))


def test_targets_of_other_metrics_may_be_any():
  assert _make(stop_at="loss:95").stop_rule() == StopRule("loss", 95.0)
  assert _make(stop_at="-off:2").stop_rule() == StopRule("-off", 2.0)
  assert _make(stop_at="accuracy:1").stop_rule() == StopRule("accuracy", 1.0)
  assert _make(target_accuracy=1.0).target_accuracy == 1


# --- A config.json that somebody has changed ------------------------------------------


@pytest.mark.parametrize(
  "changed, said",
  [
    ({"rounds": None}, "flags.rounds must be a whole number; found null"),
    ({"rounds": 2.5}, "flags.rounds must be a whole number; found 2.5"),
    ({"seed": True}, "flags.seed must be a whole number; found true"),
    ({"loss_epsilon": "0.1"}, 'flags.loss_epsilon must be a number; found "0.1"'),
    ({"norm_limit": "3"}, 'flags.norm_limit must be a number or null; found "3"'),
    ({"partition": 3}, "flags.partition must be a text; found 3"),
    ({"stop_at": ["a"]}, 'flags.stop_at must be a text or null; found ["a"]'),
    ({"tracker": "wandb"}, 'flags.tracker must be a list of texts; found "wandb"'),
    ({"devices": [0]}, "flags.devices must be a list of texts or null; found [0]"),
    ({"hparams": None}, "flags.hparams must be an object; found null"),
    (
      {"hparams": {"learning_rate": "0.1"}},
      'flags.hparams.learning_rate must be a number; found "0.1"',
    ),
    (
      {"hparams": {"batch_size": 2.5}},
      "flags.hparams.batch_size must be a whole number or null; found 2.5",
    ),
  ],
)
def test_a_setting_of_another_type_in_a_runs_file_is_named(changed, said):
  held = {**json.loads(json.dumps(dataclasses.asdict(_make()))), **changed}
  with pytest.raises(InputError) as caught:
    config.check_held(held, "a/config.json")
  assert str(caught.value) == f"a/config.json: {said}: correct it in the file."


@pytest.mark.parametrize("held", [None, [], "fedavg"])
def test_other_than_settings_in_a_runs_file_is_named(held):
  with pytest.raises(InputError, match=r"^a/config\.json: flags must be an object"):
    config.check_held(held, "a/config.json")


def test_settings_that_a_run_has_written_pass():
  hparams = {"epochs": 2, "learning_rate": 1, "batch_size": None}
  made = _make(hparams=hparams, dropout=0, devices=["CPU:0"], norm_limit=3.0)
  made.hparams["of_an_older_version"] = "a"
  config.check_held(json.loads(json.dumps(dataclasses.asdict(made))), "config.json")
  config.check_held({}, "config.json")
  config.check_held({"hparams": {"epochs": "x"}}, "config.json")  # Of whom, is not said.


def test_settings_of_runs_that_are_kept_pass():
  """Also those that older versions wrote."""
  paths = list((ROOT / "results").rglob("config.json"))
  assert len(paths) > 100
  for path in paths:
    held = json.loads(path.read_text(encoding="utf-8")).get("flags", {})
    config.check_held(held, str(path))
