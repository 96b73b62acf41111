"""A user's own algorithms: all but the first five have something wrong with them."""

from __future__ import annotations

import collections
import dataclasses
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

import tff_algos


@dataclasses.dataclass(frozen=True)
class GoodHparams(tff_algos.WeightedLocalSgd):
  """FedAvg's, with a choice and a number of one's own."""

  is_doubled: bool = tff_algos.hparam(False, "Whether all move twice.", source="own")
  clip: Optional[float] = tff_algos.hparam(
    1.0, "Not looked at.", source="own", low=0, optional=True
  )


def build_good(model, hparams=GoodHparams()):
  """FedAvg, which may move twice as far."""
  fed_avg = tff_algos.FedAvgHparams(
    epochs=hparams.epochs,
    batch_size=hparams.batch_size,
    learning_rate=hparams.learning_rate,
    server_learning_rate=2.0 if hparams.is_doubled else 1.0,
  )
  return tff_algos.build_fed_avg(model, fed_avg)


good = tff_algos.Algorithm("good", build_good, GoodHparams, "FedAvg.", "nowhere")


def build_counting(model, hparams=GoodHparams()):
  """FedAvg that measures a client's steps in the place of its loss."""

  def client_update(received, client_state, examples, seed, h):
    start = received["model"]
    result = tff_algos.train_client(model, start, examples, h, seed)
    update = tff_algos.model_update(
      h.client_weighting, start, result, examples, client_state
    )
    steps = tf.cast(result.num_steps, tf.float32)
    return update._replace(metrics=collections.OrderedDict(steps=(steps, 1.0)))

  def server_update(variables, aggregate, num_clients, h):
    del num_clients, h
    weights = tff_algos.tree_math.add(variables.model, aggregate["model"])
    return tff_algos.ServerVariables(weights, ())

  return tff_algos.compose_process(
    model,
    hparams,
    rounds=tff_algos.Round(client_update, server_update),
    aggregators=collections.OrderedDict(model=tff_algos.mean()),
  )


def build_stock(model, hparams=GoodHparams()):
  """TFF's own FedAvg, which measures nothing."""
  spec = model.example_spec
  functional = tff.learning.models.FunctionalModel(
    initial_weights=(tuple(model.initial_weights), ()),
    predict_on_batch_fn=tf.function(
      lambda weights, x, training=True: model.predict(
        tuple(weights[0]), model.preprocess(x), training, tf.constant([0, 0])
      ),
      autograph=False,
    ),
    loss_fn=tf.function(
      lambda output, label, sample_weight=None: tf.reduce_mean(
        model.example_losses(label, output)
      ),
      autograph=False,
    ),
    input_spec=tuple(tf.TensorSpec([None, *s.shape], s.dtype) for s in (spec.x, spec.y)),
  )
  stock = tff.learning.algorithms.build_weighted_fed_avg(
    functional,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(hparams.learning_rate),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )

  def batches(examples, seed):
    del seed
    return tf.data.Dataset.from_tensor_slices((examples.x, examples.y)).batch(5)

  return tff_algos.from_learning_process(stock, spec, batches)


class _WithVariable(tff.aggregators.UnweightedAggregationFactory):
  """The mean, by way of a variable, which in_process does not take."""

  def create(self, value_type):
    @tff.tensorflow.computation(value_type)
    def keep(value):
      kept = tf.Variable(0.0)
      with tf.control_dependencies([kept.assign_add(1.0)]):
        return tf.nest.map_structure(tf.identity, value)

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      mean = tff.federated_map(keep, tff.federated_mean(values))
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, mean, nothing)

    return tff.templates.AggregationProcess(initialize, next_fn)


def build_with_variable(model, hparams=GoodHparams()):
  """FedAvg by an aggregator that local_worker alone runs."""
  return tff_algos.build_fed_avg(
    model, tff_algos.FedAvgHparams(), model_aggregator=_WithVariable()
  )


two = (good, good._replace(name="again"))
none = ()
not_an_algorithm = 7
no_personal_model = good._replace(is_personal=True)
no_word = good._replace(name="fed avg")
no_name = good._replace(name=None)
no_builder = good._replace(builder=None)
no_class = good._replace(hparams_class=GoodHparams())


def build_without_default(model, hparams):
  """Has no class to find."""


def build_due_option(model, hparams=GoodHparams(), *, num_clients, rate):
  """Of its options num_clients alone is given."""


of_model_alone = good._replace(builder=lambda model: None)


def build_other_default(model, hparams=GoodHparams(epochs=3)):
  """The flags would not know of its epochs."""


@dataclasses.dataclass(frozen=True)
class TlsHparams(tff_algos.PlainSgd):
  """Its flag would be --tls_key."""

  key: float = tff_algos.hparam(1.0, "A number.", source="own")


same_flag = good._replace(name="tls", hparams_class=TlsHparams)


@dataclasses.dataclass(frozen=True)
class PlainFieldHparams(tff_algos.PlainSgd):
  """Its base would check a field of which it knows nothing."""

  mu: float = 0.1


plain_field = good._replace(hparams_class=PlainFieldHparams)


def build_nothing(model, hparams=GoodHparams()):
  """Forgets to return the process."""
