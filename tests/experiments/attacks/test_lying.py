"""Clients that lie: what they send, and the folder of a run with them."""

from __future__ import annotations

import csv
import json
import shutil

import driver
import numpy as np
import problems
import pytest
import tensorflow as tf

from experiments.attacks import liars, lies, lying, lying_report
from experiments.attacks.lies import HONEST, NOBODY, Defence, Lie
from tff_algos import client_data
from tff_algos.aggregators import coordinate_wise
from tff_algos.client_work import step_seeds
from tff_algos.errors import InputError
from tff_algos.simulation import loop

_THOROUGH = pytest.mark.thorough

CLIENTS = (0, 1, 2)


@pytest.fixture(scope="module")
def federate(in_process, tmp_path_factory):
  """`(algorithm, lying, **settings) -> Federation`, plain or of clients that may lie."""
  problem = problems.make("linear", str(tmp_path_factory.mktemp("linear")))
  built = {}

  def make(name, may_lie, **settings):
    hparams = driver.hparams_of(name, **settings)
    if name not in built:
      plain = driver.build(name, problem, hparams)
      built[name] = plain, liars.let_lie(plain)
    return driver.Federation(built[name][may_lie], problem, hparams, seed=0)

  return make


def telling(federation, client, lie):
  """The federation with a client that lies."""
  initial = federation.process.initialize_client()
  federation.client_states[client] = liars.telling(initial, lie)
  return federation


def way(federation, clients):
  """How far a round moves the model, in float64, and the federation after it."""
  before = [w.astype(np.float64) for w in federation.weights]
  federation.round(clients)
  return [w.astype(np.float64) - b for w, b in zip(federation.weights, before)]


def norm(arrays):
  return np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in arrays))


# One part; two parts and a state; kinds of rounds, and clients that remember; an exchange
# before the training.
@pytest.mark.parametrize(
  "name",
  [
    "fedavg",
    *(pytest.param(n, marks=_THOROUGH) for n in ("scaffold", "twafl", "fedagg")),
  ],
)
def test_without_a_liar_it_is_the_plain_process_bit_for_bit(federate, name):
  settings = driver.ESTIMATES if name == "fedagg" else {}
  plain, other = (federate(name, may_lie, **settings) for may_lie in (False, True))
  for clients in (CLIENTS, (3, 0)):
    plain.round(clients)
    other.round(clients)
    driver.assert_same(other.state, plain.state)
    driver.assert_same(other.metrics, plain.metrics)
  for client, state in plain.client_states.items():
    its = other.client_states[client]
    if name == "twafl":
      driver.assert_same((its.own.own, its.memory), (state.own, state.memory))
      its = its.own
    else:
      driver.assert_same(its.own, state)
    assert tuple(its.lie) == HONEST


@pytest.mark.parametrize("word", ["sign_flipped", "sign_flipped:factor=3", "scaled"])
def test_liar_alone_moves_the_model_by_the_multiple_of_its_update(federate, word):
  """w' = w + a (w_honest - w), where a = -1 is the mirrored update."""
  [lie] = lies.parse_attacks([word]).values()
  honest = way(federate("fedavg", False), [1])
  found = way(telling(federate("fedavg", True), 1, lie), [1])
  expected = {"sign_flipped": -1, "sign_flipped:factor=3": -3, "scaled": -1e6}[word]
  for f, h in zip(found, honest):
    size = np.abs(expected * h).max()
    np.testing.assert_allclose(f, expected * h, rtol=0, atol=1e-5 * max(size, 1))
  mirrored = telling(federate("fedavg", True), 1, Lie(-1.0, 0.0))
  assert norm(found) == pytest.approx(abs(expected) * norm(way(mirrored, [1])), rel=1e-5)


def test_one_liar_of_three_counts_as_one_of_three(federate):
  """The mean over examples: w' - w = (sum of n u - 2 n_1 u_1) / N for a flipped sign."""
  alone = way(federate("fedavg", False), [1])
  together = way(federate("fedavg", False), CLIENTS)
  found = way(telling(federate("fedavg", True), 1, Lie(-1.0, 0.0)), CLIENTS)
  share = problems.SIZES[1] / sum(problems.SIZES[c] for c in CLIENTS)
  for f, t, a in zip(found, together, alone):
    np.testing.assert_allclose(f, t - 2 * share * a, rtol=1e-4, atol=1e-6)


def test_noise_has_its_length_in_every_part_and_is_of_the_seed(federate):
  lie = Lie(0.0, 10.0)
  honest = federate("scaffold", False)
  sent = norm(way(honest, [1])), norm(honest.state.variables.extra)
  noisy = telling(federate("scaffold", True), 1, lie)
  first = way(noisy, [1])
  # The server's control variate started at 0: it is what the client sent, by 1/N.
  assert norm(first) == pytest.approx(10 * sent[0], rel=1e-5)
  assert norm(noisy.state.variables.extra) == pytest.approx(10 * sent[1], rel=1e-5)
  # Neither part's noise is that of the other.
  one, other = (
    np.concatenate([np.ravel(array) for array in part]) / norm(part)
    for part in (first, noisy.state.variables.extra)
  )
  assert abs(one @ other) < 0.9
  again = way(telling(federate("scaffold", True), 1, lie), [1])
  driver.assert_same(again, first)
  other = telling(federate("scaffold", True), 1, lie)
  other.seed = 1
  assert driver.differ(way(other, [1]), first)


@_THOROUGH
def test_liar_lies_in_an_exchange_before_the_training_too(federate):
  """Alone it goes along the gradient that it flipped, and flips that way once more."""
  honest = way(federate("fedagg", True, **driver.ESTIMATES), [1])
  liar = telling(federate("fedagg", True, **driver.ESTIMATES), 1, Lie(-1.0, 0.0))
  for found, expected in zip(way(liar, [1]), honest):
    np.testing.assert_allclose(found, expected, rtol=driver.RTOL, atol=driver.ATOL)


def test_what_a_liar_keeps_is_of_its_honest_work(federate):
  honest, liar = federate("scaffold", False), federate("scaffold", True)
  honest.round([1])
  telling(liar, 1, Lie(-1e6, 0.0)).round([1])
  driver.assert_same(liar.client_states[1].own, honest.client_states[1])
  assert tuple(liar.client_states[1].lie) == (np.float32(-1e6), 0)


def test_liars_are_the_share_of_all_drawn_by_the_seed():
  drawn = [liars.liars_of(20, 0.1, seed) for seed in range(10)]
  assert {len(each) for each in drawn} == {2}
  assert liars.liars_of(20, 0.1, 3) == drawn[3] and len(set(drawn)) > 1
  assert set().union(*drawn) <= set(range(20))
  assert len(liars.liars_of(5, 0.01, 0)) == 1
  assert len(liars.liars_of(7, 0.4, 0)) == 3  # The nearest whole number.


def test_noise_is_none_that_the_clients_steps_draw():
  seed = tf.constant([3, 5])
  message = {name: (tf.ones([50]),) for name in "abc"}
  for (sent,) in liars._changed(message, 0.0, 1.0, seed).values():
    for step in range(3):
      drawn = tf.random.stateless_normal([50], step_seeds.of_step(seed, step)).numpy()
      assert abs(drawn @ sent.numpy()) < 0.9 * norm([drawn]) * norm([sent])


def test_words_of_the_command_line():
  assert lies.parse_attacks(["scaled", "sign_flipped", "random:factor=3"]) == {
    "scaled": Lie(-1e6, 0.0),
    "sign_flipped": Lie(-1.0, 0.0),
    "random:factor=3": Lie(0.0, 3.0),
  }
  assert lies.parse_defences(
    ["none", "norm_limit:times=3", "trimmed_mean:share=0.2"]
  ) == {
    "none": Defence(None, None),
    "norm_limit:times=3": Defence(None, 3.0),
    "trimmed_mean:share=0.2": Defence("trimmed_mean:share=0.2", None),
  }


@pytest.fixture
def train(federate, tmp_path):
  """`(lie, **population) -> Outcome` of ten rounds, with one liar among five clients."""
  federation = federate("fedavg", True)
  problem = federation.problem
  finite = {str(k): problem.clients[k] for k in range(problems.NUM_CLIENTS)}
  spec = problem.model.example_spec
  clients = client_data.write_clients(str(tmp_path / "clients"), finite, spec)
  population = lying.Population(clients, lambda weights: {"accuracy": 0.0}, 2, 10, 0.2)

  def run(lie, **changed):
    return lying.train(federation.process, population._replace(**changed), lie, seed=0)

  return run


def test_accuracy_is_the_mean_over_the_last_five_rounds(train):
  """Which models these are, a run of five rounds says, of which all are measured."""

  def run(rounds):
    measured = []

    def evaluate(weights):
      measured.append([np.array(w) for w in weights])
      return {"accuracy": len(measured) ** 2}

    return train(HONEST, evaluate=evaluate, rounds=rounds).accuracy, measured

  (accuracy, five), (_, seven) = run(5), run(7)
  assert accuracy == (1 + 4 + 9 + 16 + 25) / 5
  assert len(seven) == 5
  driver.assert_same(seven[:3], five[2:])


@pytest.mark.parametrize("name", ["scaffold", pytest.param("twafl", marks=_THOROUGH)])
def test_run_without_a_liar_is_a_simulated_one(federate, tmp_path, name):
  """With cohorts, seeds and kinds of rounds, and with what the clients keep."""
  plain, other = (federate(name, may_lie).process for may_lie in (False, True))
  problem = federate(name, False).problem
  finite = {str(k): problem.clients[k] for k in range(problems.NUM_CLIENTS)}
  spec = problem.model.example_spec
  clients = client_data.write_clients(str(tmp_path / "clients"), finite, spec)
  measured = []

  def evaluate(weights):
    measured.append([np.array(w) for w in weights])
    return {"accuracy": 0.0}

  population = lying.Population(clients, evaluate, 2, 6, 0.2)
  lying.train(other, population, HONEST, seed=3)
  found, measured[:] = measured[-1], []
  settings = loop.Settings(rounds=6, clients_per_round=2, seed=3)
  loop.simulate(plain, clients, settings, evaluate=evaluate)
  driver.assert_same(found, measured[-1])


@pytest.mark.parametrize("clients_per_round", [1, 2])
def test_lies_are_those_of_the_rounds_cohorts(train, clients_per_round):
  """A lie that is not finite is dropped, and no other message is."""
  found = train(Lie(np.inf, 0.0), clients_per_round=clients_per_round)
  # The one liar takes part in some of the ten rounds.
  assert 0 < found.lies == found.dropped < 10
  assert found.rounds_all_dropped == (found.lies if clients_per_round == 1 else 0)


# --- The program -----------------------------------------------------------------------


def _request(folder, **changed):
  request = lies.Request(
    task="own_tasks:good",
    algorithms=["fedavg", "twafl"],
    attacks=lies.parse_attacks(["scaled"]),
    defences=lies.parse_defences(["median"]),
    liars=0.25,
    num_clients=4,
    clients_per_round=4,
    rounds=1,
    repeats=1,
    hparams={"fedavg": {"epochs": 1}, "twafl": {}},
    data_dir=None,
    cache_dir=str(folder / "cache"),
    out=str(folder / "out"),
  )
  return request._replace(**changed)


def _runs(folder):
  with open(folder / "out/runs.csv", newline="") as f:
    return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A folder whose last run was lost, and then made again: (folder, before, after)."""
  folder = tmp_path_factory.mktemp("lying")
  lying.run(_request(folder))
  before, path = _runs(folder), folder / "out/runs.csv"
  path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
  lying.run(_request(folder))
  return folder, before, _runs(folder)


def test_run_leaves_its_files(finished, read_table):
  folder, runs, _ = finished
  assert {path.name for path in (folder / "out").iterdir()} == {
    *("config.json", "runs.csv", "table.md", "table.csv", "accuracy.png")
  }
  # TWAFL takes no aggregator.
  assert [(r["algorithm"], r["defence"], r["attack"]) for r in runs] == [
    ("fedavg", "median", "nobody"),
    ("fedavg", "median", "scaled"),
  ]
  assert [int(run["lies"]) for run in runs] == [0, 1]
  config = json.loads((folder / "out/config.json").read_text())
  assert config["settings"]["clients_per_round"] == 4
  assert config["attacks"] == {"scaled": {"factor": -1e6, "noise": 0.0}}
  assert config["hparams"]["fedavg"]["epochs"] == 1
  shown = read_table((folder / "out/table.md").read_text().split("Messages")[0])
  accuracies = [f"{100 * float(run['accuracy']):.1f}" for run in runs]
  assert shown == [["fedavg", "median", "1", *accuracies]]


def test_folder_that_was_cut_short_is_gone_on_with(finished):
  _, before, after = finished
  assert after[0] == before[0]
  lost, again = before[1], after[1]
  assert {k: v for k, v in again.items() if k != "seconds"} == {
    k: v for k, v in lost.items() if k != "seconds"
  }


@_THOROUGH
def test_results_whose_last_line_was_cut_are_refused(finished, tmp_path):
  folder, _, _ = finished
  shutil.copytree(folder / "out", tmp_path / "out")
  path = tmp_path / "out/runs.csv"
  path.write_bytes(path.read_bytes()[:-25])
  before = path.read_bytes()
  with pytest.raises(InputError, match=r"runs\.csv that .*, or was cut short: choose"):
    lying.run(_request(folder, out=str(tmp_path / "out")))
  assert path.read_bytes() == before


@pytest.mark.parametrize(
  "heading, name",
  [("data", "clients"), pytest.param("model", "num_weights", marks=_THOROUGH)],
)
def test_other_data_or_model_are_refused_in_the_folder_of_results(
  finished, tmp_path, heading, name
):
  folder, _, runs = finished
  out = tmp_path / "out"
  shutil.copytree(folder / "out", out)
  path = out / "config.json"
  config = json.loads(path.read_text())
  path.write_text(json.dumps({**config, heading: {**config[heading], name: 1}}))
  with pytest.raises(InputError, match=f"{name}=1, not "):
    lying.run(_request(folder, out=str(out)))
  # An older folder does not say what it was made of.
  path.write_text(json.dumps({k: v for k, v in config.items() if k != heading}))
  lying.run(_request(folder, out=str(out)))
  assert _runs(tmp_path) == runs


@_THOROUGH
def test_own_code_that_changed_is_refused_in_the_folder_of_results(check_own_code):
  check_own_code(lying, _request)


@pytest.mark.parametrize(
  "wrong, said",
  [
    (dict(rounds=2, liars=0.5), "rounds=1, not 2; liars=0.25, not 0.5"),
    (dict(hparams={"fedavg": {"epochs": 2}}), "fedavg.epochs=1, not 2"),
  ],
)
def test_other_settings_are_refused_in_the_folder_of_results(finished, wrong, said):
  folder, _, runs = finished
  with pytest.raises(InputError, match=said):
    lying.run(_request(folder, **{"algorithms": ["fedavg"], **wrong}))
  assert _runs(folder) == runs


def test_folder_is_looked_at_before_anything_is_loaded(write_run, monkeypatch, tmp_path):
  """A run's, whose settings are under other headings, would be mixed with ours."""
  write_run(tmp_path / "out")
  monkeypatch.setattr(lying, "prepare", lambda request: pytest.fail("too late"))
  with pytest.raises(InputError, match="holds results of another program: choose"):
    lying.run(_request(tmp_path))


def test_every_attack_is_run_with_every_seed_that_is_missing(monkeypatch, tmp_path):
  trained = []

  def train(process, population, lie, seed):
    trained.append((process, lie, seed))
    return lying.Outcome(0.5, 0, 0, 0, 1.0)

  monkeypatch.setattr(lying, "train", train)
  pairs = [("fedavg", "none"), ("fedavg", "median")]
  builders = {pair: lambda pair=pair: f"process of {pair}" for pair in pairs}
  prepared = lying.Prepared("", {}, {}, {}, None, builders)
  [lie] = lies.parse_attacks(["scaled"]).values()
  done = lying_report.Run("fedavg", "none", NOBODY, 0, 0.5, 0, 0, 0, 1.0)
  runs, kept = [done], []
  lying._train_all(
    _request(tmp_path, repeats=2), prepared, runs, lambda: kept.append(len(runs))
  )
  every = [(pair, told, k) for pair in pairs for told in (HONEST, lie) for k in range(2)]
  assert trained == [(f"process of {pair}", told, k) for pair, told, k in every[1:]]
  words = {HONEST: NOBODY, lie: "scaled"}
  assert [run.key for run in runs] == [(*pair, words[told], k) for pair, told, k in every]
  assert kept == list(range(2, 9))


def test_what_was_not_asked_for_is_not_shown(monkeypatch, tmp_path):
  """Another command may have left it there; all seeds are shown, in their order."""

  def run(defence, attack, seed):
    return lying_report.Run("fedavg", defence, attack, seed, 0.5, 0, 0, 0, 1.0)

  shown = []
  monkeypatch.setattr(lying_report, "write", lambda out, runs, *more: shown.extend(runs))
  builders = {("fedavg", "median"): None}
  prepared = lying.Prepared("", {}, {}, {}, None, builders)
  asked = [run("median", NOBODY, 0), run("median", NOBODY, 1), run("median", "scaled", 0)]
  others = [run("median", "random", 0), run("none", "scaled", 0)]
  lying._report(_request(tmp_path), prepared, [*others, *reversed(asked)])
  assert shown == asked


def test_processes_have_their_defences(in_process, tmp_path):
  defences = lies.parse_defences(["median", "norm_limit:times=3"])
  request = _request(tmp_path, algorithms=["fedavg"], defences=defences)
  median = type(coordinate_wise.median_factory())
  found = {}
  for (_, word), build in lying.prepare(request).builders.items():
    made = build().composed_of
    is_median = isinstance(made["aggregators"]["model"], median)
    found[word] = is_median, made["norm_limit"]
  assert found == {"median": (True, None), "norm_limit:times=3": (False, 3.0)}


def test_a_pair_that_does_not_go_together_is_left_out(tmp_path):
  """Found before anything is trained; by their means FedAgg's estimates reach all."""
  defences = {"none": Defence(), "norm_limit": Defence(norm_limit=3.0)}
  hparams = {"fedagg": {"estimates": "fixed_point"}}
  request = _request(
    tmp_path, algorithms=["fedagg", "fedavg"], hparams=hparams, defences=defences
  )
  assert set(lying.prepare(request).builders) == {
    ("fedagg", "none"),
    ("fedavg", "none"),
    ("fedavg", "norm_limit"),
  }


@pytest.mark.parametrize(
  "wrong, said",
  [
    pytest.param(
      *(dict(algorithms=["twafl"]), "twafl take none of the defences: add none"),
      marks=_THOROUGH,
    ),
    (dict(algorithms=["fedavg", "fedavg"]), "Two of the algorithms are called fedavg"),
    (dict(clients_per_round=5), r"clients_per_round must be in 1\.\.4"),
    (dict(defences={"d": Defence("trimmed_mean:share=0.5")}), "share must be at least"),
  ],
)
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(tmp_path, wrong, said):
  with pytest.raises(InputError, match=said):
    lying.run(_request(tmp_path, **wrong))
  assert not (tmp_path / "out").exists()


def test_table_has_the_means_of_the_seeds(tmp_path, read_table):
  def run(defence, attack, seed, accuracy, dropped, rounds):
    return lying_report.Run(
      "fedavg", defence, attack, seed, accuracy, 5, dropped, rounds, 1.0
    )

  runs = [
    run("none", NOBODY, 0, 0.9, 0, 0),
    run("none", NOBODY, 1, 0.8, 0, 0),
    run("none", "scaled", 0, 0.1, 30, 2),
    run("none", "scaled", 1, 0.2, 10, 4),
    run("median", "scaled", 0, 0.75, 0, 0),
  ]
  settings = dict(
    task="t", num_clients=20, clients_per_round=10, rounds=3, liars=0.1, last_rounds=5
  )
  text = lying_report.write(str(tmp_path), runs, settings, [NOBODY, "scaled"], "")
  assert "the mean of the last 3 rounds" in text  # There are no five.
  accuracy, dropped = map(read_table, text.split("Messages"))
  assert accuracy == [
    ["fedavg", "none", "2", "85.0", "15.0"],
    ["fedavg", "median", "0-1", "", "75.0"],
  ]
  assert dropped == [
    ["fedavg", "none", "2", "0", "20 (3)"],
    ["fedavg", "median", "0-1", "", "0"],
  ]
  with open(tmp_path / "table.csv", newline="") as f:
    first, second, _ = csv.DictReader(f)
  # The least may be of any seed.
  for line, found in ((first, "0.8500 0.8000 0.9000"), (second, "0.1500 0.1000 0.2000")):
    names = ("accuracy", "accuracy_min", "accuracy_max")
    assert [line[name] for name in names] == found.split()
