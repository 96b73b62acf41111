"""Law: rounds over clients' data sets are the rounds over files of the same examples."""

from __future__ import annotations

import driver
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos

ROUNDS = ((0, 1), (2, 0, 3))


@pytest.mark.parametrize("name, settings", driver.every_form())
def test_rounds_are_those_over_files(federate, name, settings):
  files = federate(name, **settings)
  process, problem = files.process, files.problem
  over = tff_algos.over_datasets(process, seed=5)
  state = found = files.state
  kept = {c: process.initialize_client() for c in range(4)}
  found_kept = dict(kept)
  for t, cohort in enumerate(ROUNDS):
    examples = [problem.clients[c] for c in cohort]
    inputs = [
      tff_algos.ClientInput(
        problem.directory.path(str(c)), tff_algos.dataset_seed(of_client, t, seed=5)
      )
      for c, of_client in zip(cohort, examples)
    ]
    sets = [tf.data.Dataset.from_tensor_slices(of_client) for of_client in examples]
    output = process.next_of(t)(state, [kept[c] for c in cohort], inputs)
    other = over.next_of(t)(found, [found_kept[c] for c in cohort], sets)
    driver.assert_same(other, output, f"round {t}")
    assert driver.differ(state.variables.model, output.state.variables.model)
    state, found = output.state, other.state
    kept.update(zip(cohort, output.client_states))
    found_kept.update(zip(cohort, other.client_states))


def batched(examples, size):
  return tf.data.Dataset.from_tensor_slices(examples).batch(size)


def named(examples):
  x, y = examples
  return tf.data.Dataset.from_tensor_slices({"y": y, "x": x})


@pytest.mark.parametrize(
  "make", [lambda e: batched(e, 2), lambda e: named(e).batch(4)], ids=["tuples", "names"]
)
def test_batches_and_names_change_nothing(federate, make):
  """Not even the local batches: those are the hyper-parameters'."""
  files = federate("fedavg")
  examples = [files.problem.clients[c] for c in (0, 1)]
  plain = tff_algos.over_datasets(files.process)
  sets = [tf.data.Dataset.from_tensor_slices(e) for e in examples]
  expected = plain.next(files.state, [()] * 2, sets)
  sets = [make(e) for e in examples]
  over = tff_algos.over_datasets(files.process, sets[0].element_spec)
  driver.assert_same(over.next(files.state, [()] * 2, sets), expected)


def test_recomposed_it_is_over_data_sets_still(federate):
  over = tff_algos.over_datasets(federate("fedavg").process, seed=5)
  again = over.recomposed(norm_limit=10.0)
  asked, given = (p.next.type_signature.parameter[2] for p in (over, again))
  assert asked.is_equivalent_to(given)


def test_another_round_seed_or_client_draws_otherwise(federate):
  files = federate("fedavg")
  examples = files.problem.clients[1]
  keys = [
    tff_algos.dataset_seed(examples, 0),
    tff_algos.dataset_seed(examples, 1),
    tff_algos.dataset_seed(examples, 0, seed=1),
    tff_algos.dataset_seed((examples[0], examples[1][::-1]), 0),
    tff_algos.dataset_seed(files.problem.clients[0], 0),
  ]
  assert len({key.tobytes() for key in keys}) == len(keys)
  again = tff_algos.dataset_seed(examples, np.int64(0), np.int64(1))
  np.testing.assert_array_equal(again, keys[2])
  assert again.dtype == keys[2].dtype == np.int32


def test_numpys_seed_draws_as_pythons(federate):
  files = federate("fedavg")
  sets = [tf.data.Dataset.from_tensor_slices(files.problem.clients[0])]
  found, expected = (
    tff_algos.over_datasets(files.process, seed=seed).next(files.state, [()], sets)
    for seed in (np.int64(5), 5)
  )
  driver.assert_same(found, expected)


@pytest.mark.parametrize(
  "name",
  ["scaffold", "twafl", pytest.param("fedsgd", marks=pytest.mark.thorough)],
)
def test_a_client_without_examples_counts_for_nothing(federate, name):
  """FedSGD's clients weigh by examples, SCAFFOLD's all the same; TWAFL's remember."""
  files = federate(name)
  over = tff_algos.over_datasets(files.process)
  sets = [tf.data.Dataset.from_tensor_slices(files.problem.clients[c]) for c in range(3)]
  sets[1] = sets[1].take(0)
  own = files.process.initialize_client()
  with_it = over.next(files.state, [own] * 3, sets)
  without = over.next(files.state, [own] * 2, [sets[0], sets[2]])
  driver.assert_same(with_it.state, without.state)
  driver.assert_same(with_it.client_states[1], own)
  counted = with_it.metrics["client_work"]["train"]
  assert (counted["num_accepted"], counted["num_dropped"]) == (2, 1)
  expected = without.metrics["client_work"]["train"]
  assert counted["num_examples"] == expected["num_examples"]
  assert counted["loss"] == expected["loss"]


@pytest.mark.parametrize("label", [-1, None, 10**6])
def test_a_label_that_the_model_has_not_fails_the_round(federate, label):
  """Also of pFedGP, whose loss takes any number for a class; None: the first beyond."""
  files = federate("pfedgp")
  label = files.process.model.labels().stop if label is None else label
  over = tff_algos.over_datasets(files.process)
  x, y = (np.array(part) for part in files.problem.clients[0])
  y[1] = label
  dataset = tf.data.Dataset.from_tensor_slices((x, y))
  with pytest.raises(Exception, match=rf"labels that are not among 0\.\.\d.*{label}"):
    over.next(files.state, [files.process.initialize_client()], [dataset])


def test_bytes_are_those_over_files_and_the_rounds_number(federate):
  for name in ("scaffold", "fedagg"):
    process = federate(name).process
    over = tff_algos.over_datasets(process)
    for kind, crossing in process.traffic.items():
      found = over.traffic[kind]
      assert found.up == crossing.up
      assert dict(found.down, round_num=0) == dict(crossing.down, round_num=0)
      assert found.down["round_num"] == crossing.down.get("round_num", 0) + 4


@pytest.mark.parametrize(
  "element_spec",
  [
    (tf.TensorSpec([4], tf.float64), tf.TensorSpec([], tf.int64)),
    (tf.TensorSpec([5], tf.float32), tf.TensorSpec([], tf.int64)),
    {"pixels": tf.TensorSpec([4], tf.float32), "label": tf.TensorSpec([], tf.int64)},
    tf.TensorSpec([4], tf.float32),
  ],
)
def test_other_elements_are_refused_in_one_sentence(federate, element_spec):
  with pytest.raises(tff_algos.InputError, match=r"^The elements [^\n]*map [^\n]*\.$"):
    tff_algos.over_datasets(federate("fedavg").process, element_spec)


def test_model_in_the_place_of_a_process_is_refused(federate):
  with pytest.raises(tff_algos.InputError, match=r"process is a Model: "):
    tff_algos.over_datasets(federate("fedavg").problem.model)


def test_tffs_own_ways_to_data_sets(federate):
  """A `ClientData`'s computation from ids, and `tf.train.Example`s of a pipeline."""
  files = federate("fedavg")
  clients = {str(c): files.problem.clients[c] for c in range(3)}
  client_data = tff.simulation.datasets.TestClientData(
    {c: {"x": x, "y": y} for c, (x, y) in clients.items()}
  )
  spec = client_data.element_type_structure
  process = tff_algos.as_learning_process(tff_algos.over_datasets(files.process, spec))
  composed = tff.simulation.compose_dataset_computation_with_learning_process(
    client_data.dataset_computation, process
  )
  expected = process.next(
    process.initialize(), [client_data.create_tf_dataset_for_client(c) for c in clients]
  )
  found = composed.next(composed.initialize(), list(clients))
  driver.assert_same(found, expected)

  features = {
    "x": tf.io.FixedLenFeature([4], tf.float32),
    "y": tf.io.FixedLenFeature([], tf.int64),
  }

  @tff.tensorflow.computation(tff.SequenceType(np.str_))
  def parse(serialized):
    return serialized.map(lambda s: tf.io.parse_single_example(s, features))

  composed = tff.simulation.compose_dataset_computation_with_learning_process(
    parse, process
  )
  stored = [
    tf.data.Dataset.from_tensor_slices([_serialized(*e) for e in zip(*examples)])
    for examples in clients.values()
  ]
  driver.assert_same(composed.next(composed.initialize(), stored), expected)


def _serialized(x, y) -> bytes:
  feature = {
    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
  }
  return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
