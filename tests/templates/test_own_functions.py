"""Mistakes in an algorithm of one's own: each is one sentence that says which it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import warnings
from collections import OrderedDict
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import tf_stack

import tff_algos
from tff_algos.errors import InputError, InputWarning
from tff_algos.templates.process_types import ProcessTypeError


def _model() -> tff_algos.Model:
  return tff_algos.Model(
    initial_weights=(np.zeros([2, 3], np.float32),),
    weight_names=("kernel",),
    example_spec=tff_algos.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=lambda weights, x, training, seed: x @ weights[0],
  )


def _result(received, client_state, examples) -> tff_algos.ClientResult:
  message = OrderedDict(model=tuple(tf.ones_like(w) for w in received["model"]))
  loss = (tf.reduce_sum(examples.x), tf.constant(1.0))
  return tff_algos.ClientResult(
    message, OrderedDict(model=tf.constant(1.0)), client_state, OrderedDict(loss=loss)
  )


def _moved(variables, aggregate, num_clients, h) -> tff_algos.ServerVariables:
  return variables._replace(model=aggregate["model"])


def _compose(change=lambda result: result, server=_moved, aggregators=None, **more):
  def client_update(received, client_state, examples, seed, h):
    return change(_result(received, client_state, examples))

  return tff_algos.compose_process(
    _model(),
    tff_algos.FedAvgHparams(),
    rounds=more.pop("rounds", tff_algos.Round(client_update, server)),
    aggregators=aggregators or OrderedDict(model=tff_algos.mean()),
    **more,
  )


def _replaced(**fields):
  return lambda result: result._replace(**fields)


def _update(received, client_state, examples, seed, h):
  return _result(received, client_state, examples)


def _noisy(variables):
  return {"model": tuple(w + tf.random.normal(w.shape) for w in variables.model)}


def _noisy_estimate(received, client_state, examples, seed, h):
  noise = {"m": (tf.random.normal([]), 1.0)}
  return _update(received, client_state, examples, seed, h)._replace(metrics=noise)


def _by_python(result):
  ones = tf.py_function(lambda: np.ones([2, 3], np.float32), [], tf.float32)
  return result._replace(metrics={"mine": (tf.reduce_sum(ones), 1.0)})


_ESTIMATION = tff_algos.Estimation(_noisy_estimate, times=1)
_ONE = np.float32(1)
_WITH_EXTRA = _replaced(
  message={"model": (np.ones([2, 3], np.float32),), "extra": 1.0},
  weight={"model": 1.0, "extra": 1.0},
)
_MISTAKES = {
  "no result": (
    dict(change=lambda result: result.message["model"]),
    r"client_update must return a tff_algos\.ClientResult, .* found a tuple\.",
  ),
  "nothing": (dict(change=lambda result: None), r"found a NoneType\."),
  "message without names": (
    dict(change=_replaced(message=(1.0,))),
    r"The message of a ClientResult must map names to values; found a tuple\.",
  ),
  "weight of another part": (
    dict(change=_replaced(weight={"modle": 1.0})),
    r"the same parts in the same order; found \['model'\] and \['modle'\]\.",
  ),
  "metric of one number": (
    dict(change=_replaced(metrics={"mine": 3.0})),
    r"The metric 'mine' of a ClientResult must be a pair of scalars, ",
  ),
  "state that is not declared": (
    dict(change=_replaced(client_state=1.0)),
    r"client_update returns float32\[\], but init_client gives \(\): ",
  ),
  "state of another dtype": (
    dict(change=_replaced(client_state={"a": 1}), init_client=lambda: {"a": _ONE}),
    r"returns \{a: int32\[\]\}, but init_client gives \{a: float32\[\]\}: ",
  ),
  "part without an aggregator": (
    dict(change=_WITH_EXTRA),
    r"the part 'extra', for which aggregators has no factory; it has model\.",
  ),
  "aggregator without a part": (
    dict(aggregators=dict(model=tff_algos.mean(), other=tff_algos.mean())),
    r"a factory for the part 'other', which no client_update sends; parts are model\.",
  ),
  "server's weights alone": (
    dict(server=lambda variables, aggregate, n, h: aggregate["model"]),
    r"server_update must return tff_algos\.ServerVariables, .* found a tuple\.",
  ),
  "other server variables": (
    dict(server=lambda variables, aggregate, n, h: variables._replace(extra=_ONE)),
    r"The extra of server_update returns float32\[\], but init_server gives \(\): ",
  ),
  "fewer weights": (
    dict(server=lambda variables, aggregate, n, h: variables._replace(model=())),
    r"The model of server_update returns \(\), but the Model gives .*float32\[2, 3\]",
  ),
  "random numbers of its own": (
    dict(change=lambda r: r._replace(metrics={"m": (tf.random.normal([]), 1.0)})),
    r"client_update uses RandomStandardNormal, which gives other numbers in each run: ",
  ),
  "random numbers of the server": (
    dict(
      server=lambda variables, aggregate, n, h: variables._replace(
        model=tuple(w + tf.random.normal(w.shape) for w in aggregate["model"])
      )
    ),
    r"server_update uses RandomStandardNormal, .* a seed that its extra holds by ",
  ),
  "random numbers of the distributor": (
    dict(rounds=tff_algos.Round(_update, _moved, _noisy)),
    r"^distribute uses RandomStandardNormal, .* a seed that its extra holds by ",
  ),
  "random numbers of an estimate": (
    dict(rounds=tff_algos.Round(_update, _moved, estimation=_ESTIMATION)),
    r"^Estimation uses RandomStandardNormal, .* draw from its seed by ",
  ),
  "Python in the graph": (
    dict(change=_by_python),
    r"^client_update calls Python from its graph \(EagerPyFunc\), [^\n]*operations\.$",
  ),
  "estimate that hides a part": (
    dict(
      rounds=tff_algos.Round(_update, _moved, estimation=tff_algos.Estimation(_update, 1))
    ),
    r"^The part 'model' of an Estimation's message has the name of one that the server ",
  ),
  "metric of several numbers": (
    dict(change=_replaced(metrics={"mine": (np.ones(3, np.float32), 1.0)})),
    r"^The metric 'mine' of a ClientResult must be a pair of scalars, ",
  ),
  "metric of a word": (
    dict(change=_replaced(metrics={"mine": ("high", 1.0)})),
    r"^The metric 'mine' of a ClientResult must be a pair of scalars, ",
  ),
  "metric of a taken name": (
    dict(change=_replaced(metrics={"num_dropped": (1.0, 1.0)})),
    r"^The metric 'num_dropped' of a ClientResult has the name of one that every round ",
  ),
  "metric of two words": (
    dict(change=_replaced(metrics={"my loss": (1.0, 1.0)})),
    r"^The metric 'my loss' must have a name of letters, digits and _ \. / - alone\.$",
  ),
  "weight of several numbers": (
    dict(change=_replaced(weight={"model": np.ones(3, np.float32)})),
    r"^The weight of the part 'model' must be a scalar, .* found one of shape \(3,\)\.$",
  ),
  "weight that is not there": (
    dict(change=_replaced(weight={"model": None})),
    r"^The weight of a ClientResult must be tensors .* found None in \{'model': None\}\.",
  ),
  "part of whole numbers": (
    dict(change=_replaced(message={"model": (np.ones([2, 3], np.int32),)})),
    r"^MeanFactory does not aggregate the part 'model', which is <int32\[2,3\]>: ",
  ),
  "distributor without names": (
    dict(rounds=tff_algos.Round(_update, _moved, lambda variables: variables.model)),
    r"^What distribute returns must map the names of parts .*; found a tuple\.$",
  ),
  "distributor of nothing": (
    dict(rounds=tff_algos.Round(_update, _moved, lambda variables: {"model": None})),
    r"^What distribute returns must be tensors .*; found None in \{'model': None\}\.$",
  ),
  "server's start of nothing": (
    dict(init_server=lambda: None),
    r"^What init_server returns must be tensors .*, \(\) for nothing; found None in None",
  ),
  "clients' start of nothing": (
    dict(init_client=lambda: {"a": None}),
    r"^What init_client returns must be tensors .*; found None in \{'a': None\}\.$",
  ),
  "decorated function": (
    dict(rounds=tff_algos.Round(tf.function(_update), _moved)),
    r"^client_update must not be a tf\.function, ",
  ),
  "part that is not sent": (
    dict(server=lambda variables, aggregate, n, h: aggregate["modle"]),
    r"There is no part 'modle', of what the server sends or of the aggregate; there is "
    r"model\.$",
  ),
  "client update of too few": (
    dict(rounds=tff_algos.Round(lambda received, examples, seed, h: None, _moved)),
    r"^client_update must be a function of \(received, client_state, examples, seed, h\)"
    r"; found one of \(received, examples, seed, h\)\.$",
  ),
  "server update of too many": (
    dict(server=lambda variables, aggregate, num_clients, h, more: variables),
    r"^server_update must be a function of \(variables, aggregate, num_clients, h\); ",
  ),
  "distributor that is none": (
    dict(rounds=tff_algos.Round(lambda r, c, e, s, h: None, _moved, "model")),
    r"^distribute must be a function of \(variables\); found 'model'\.$",
  ),
  "server's random start": (
    dict(init_server=lambda: tf.random.uniform([])),
    r"init_server uses RandomUniform, which gives other numbers in each run: ",
  ),
  "clients' random start": (
    dict(init_client=lambda: {"a": tf.random.uniform([])}),
    r"init_client uses RandomUniform, which gives other numbers in each run: ",
  ),
}


def test_mistake_behind_many_arrays_is_found_and_shown():
  def server(variables, aggregate, n, h):
    return variables._replace(extra=(*variables.extra[:-1], tf.constant(1.0, tf.float64)))

  said = r"returns \.\.\..*float64\[\]\), but init_server gives \.\.\..*float32\[\]\): "
  with pytest.raises(ProcessTypeError, match=said) as caught:
    _compose(server=server, init_server=lambda: (_ONE,) * 40)
  assert len(str(caught.value)) < 800


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_mistake_is_one_sentence(mistake):
  options, said = _MISTAKES[mistake]
  with pytest.raises(ProcessTypeError, match=said) as caught:
    _compose(**options)
  assert "\n" not in str(caught.value)


def _in_a_loop(result):
  tf.while_loop(lambda i: i < 3, lambda i: (tf.where(i != 1, i + 1, i + 2),), (0,))
  return result


def _in_a_condition(result):
  return result if result.weight["model"] == 1.0 else None


def _between_tensors(variables, *others):
  return variables if variables.model[0] != tf.zeros([2, 3]) else None


def _at_the_start():
  return tf.where(tf.zeros([2]) == np.float32(0), 1.0, 2.0)


@pytest.mark.parametrize(
  "where, behind, options",
  [
    ("client_update", _in_a_loop, dict(change=_in_a_loop)),
    ("client_update", _in_a_condition, dict(change=_in_a_condition)),
    ("server_update", _between_tensors, dict(server=_between_tensors)),
    ("init_client", _at_the_start, dict(init_client=_at_the_start)),
    ("init_server", _at_the_start, dict(init_server=_at_the_start)),
    (
      "distribute",
      _between_tensors,
      dict(rounds=tff_algos.Round(lambda r, c, e, s, h: None, _moved, _between_tensors)),
    ),
  ],
)
def test_comparison_of_objects_in_place_of_values_is_refused(where, behind, options):
  """It would be the same answer in each round, whatever the values are."""
  line = behind.__code__.co_firstlineno + 1
  said = rf"^{where} compares tensors .*test_own_functions\.py, line {line}, "
  with pytest.raises(InputError, match=said):
    _compose(**options)
  assert bool(tf.constant(1) == 1) and not bool(tf.constant(1) != 1)  # As before.


def _by_an_if(result):
  return result if result.weight["model"] > 1 else None


def _by_a_loop(result):
  for _ in tf.range(3):
    return result


@pytest.mark.parametrize("change", [_by_an_if, _by_a_loop])
def test_decision_in_python_by_a_tensor_is_refused(change):
  """TensorFlow's own words advise a decorator that would be refused."""
  line = change.__code__.co_firstlineno + 1
  said = rf"^client_update decides .*test_own_functions\.py, line {line}: .* tf\.cond"
  with pytest.raises(ProcessTypeError, match=said):
    _compose(change)


_OUTSIDE = tf.keras.layers.Dense(3)
_OUTSIDE.build([None, 2])
_CONSTANT = tf.constant(2.0)


def _make_a_variable(*_):
  tf.Variable(1.0)


def _ask_for_numpy(result, *_):
  result.weight["model"].numpy()


def _call_numpy(result, *_):
  np.mean(result.message["model"][0])


def _go_through_python(result, *_):
  range(tf.shape(result.message["model"][0])[0])


def _round_in_python(result, *_):
  float(result.weight["model"])


def _call_a_layer(result, *_):
  _OUTSIDE(result.message["model"][0][:, :2])


def _use_a_weight_in_a_branch(result, *_):
  tf.cond(result.weight["model"] > 0, lambda: _OUTSIDE.bias * 1, lambda: tf.ones([3]))


def _use_a_constant(result, *_):
  return _CONSTANT * result.weight["model"]


@pytest.mark.parametrize(
  "mistake, said",
  [
    (_make_a_variable, r"makes a variable in .*tff\.learning\.optimizers"),
    (_ask_for_numpy, "takes a tensor's value in Python, "),
    (_call_numpy, "takes a tensor's value in Python, "),
    (_go_through_python, "takes a tensor's value in Python, "),
    (_round_in_python, "takes a tensor's value in Python, "),
    (_call_a_layer, "uses a variable, .* predict"),
    (_use_a_weight_in_a_branch, "uses a variable, "),
    (_use_a_constant, "uses .* or a tensor from outside in "),
  ],
)
def test_what_a_traced_function_cannot_do_is_said_with_its_line(
  mistake, said, monkeypatch
):
  """TensorFlow's own words name no line, or a decorator, or nothing that was written."""
  extract_stack = tf_stack.extract_stack
  monkeypatch.setattr(
    tf_stack, "extract_stack", getattr(extract_stack, "__wrapped__", extract_stack)
  )

  def change(result):
    mistake(result)
    return result

  line = mistake.__code__.co_firstlineno + 1
  place = rf"test_own_functions\.py, line {line}: use "
  value = rf"test_own_functions\.py, line {line}: it is traced once"
  with pytest.raises(ProcessTypeError, match=rf"^client_update {said}") as caught:
    _compose(change)
  assert re.search(f"{place}|{value}", str(caught.value))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [_OUTSIDE.bias, _CONSTANT, tf.ones([200])])
@pytest.mark.parametrize("where", ["init_server", "init_client", "server_update"])
def test_state_that_is_a_variable_or_from_outside_is_refused(where, value):
  options = {where: lambda: value}
  if where == "server_update":
    options = dict(server=lambda variables, *_: variables._replace(extra=value))
  said = rf"^What {where} returns must be no variable, .*: give NumPy's arrays"
  with pytest.raises(ProcessTypeError, match=said):
    _compose(**options)


def test_variable_that_the_server_makes_is_refused_with_its_line():
  line = _make_a_variable.__code__.co_firstlineno + 1
  with pytest.raises(ProcessTypeError, match=rf"^init_server makes .* line {line}: use"):
    _compose(init_server=_make_a_variable)


def test_mistake_in_code_of_ours_is_not_said_to_be_the_authors():
  code = "def update(received, *_): received['model'][0].numpy()"
  names = {}
  exec(compile(code, tff_algos.__file__, "exec"), names)  # As if it stood there.
  with pytest.raises(AttributeError, match="no attribute 'numpy'"):
    _compose(rounds=tff_algos.Round(names["update"], _moved))


def test_mistake_after_a_comparison_that_was_given_up_is_said():
  def change(result):
    with contextlib.suppress(InputError):
      assert result.weight["model"] == 1.0
    return result.message["modle"]

  with pytest.raises(KeyError, match="modle"):
    _compose(change)


def test_comparison_by_identity_is_taken():
  """It is what `in` and None are for, in a graph as elsewhere."""

  def change(result):
    weight = result.weight["model"]
    assert weight in [tf.constant(2.0), weight] and weight != None  # noqa: E711
    assert weight != () and weight != "nothing" and not weight == object()  # noqa: SIM201
    return result

  _compose(change=change)


@dataclasses.dataclass(frozen=True)
class _Tunable(tff_algos.HyperParameters):
  rate: float = tff_algos.hparam(0.5, "A rate.", source="own", tunable=True)
  times: int = tff_algos.hparam(2, "How often.", source="own")


def _compose_with(hparams, rate_of):
  """Of a client update that adds a rate, which is had of `h`."""

  def client_update(received, client_state, examples, seed, h):
    result = _result(received, client_state, examples)
    added = tuple(rate_of(h) * w for w in result.message["model"])
    return result._replace(message=OrderedDict(model=added))

  return tff_algos.compose_process(
    _model(),
    hparams,
    rounds=tff_algos.Round(client_update, _moved),
    aggregators=OrderedDict(model=tff_algos.mean()),
  )


@pytest.mark.parametrize("is_changed", [False, True])
def test_rate_that_no_schedule_changes_is_said(is_changed):
  hparams = _Tunable(rate=0.75)
  own = dataclasses.replace(hparams, times=3) if is_changed else hparams
  said = r"^client_update reads rate as a number, .* of other .* than its h: read"
  with pytest.warns(InputWarning) as warned:
    _compose_with(hparams, lambda h: own.rate * h.times)
  assert [w for w in warned if re.search(said, str(w.message))]


@pytest.mark.parametrize(
  "rate_of",
  [
    lambda h: h.rate,
    lambda h: dataclasses.replace(h, times=3).rate,  # For another phase of training.
    lambda h: h.rate + _Tunable(rate=0.25).rate,  # One of its own.
  ],
)
def test_rate_of_h_needs_no_warning(rate_of):
  hparams = _Tunable(rate=0.75)
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    _compose_with(hparams, rate_of)
  assert hparams.rate == 0.75  # Outside of a function it is a number.


def test_changed_hyper_parameters_keep_the_tensor_and_are_checked():
  said = r"^times must be int, any number; found 'often' of type str\.$"
  with pytest.raises(TypeError, match=said):
    _compose_with(_Tunable(), lambda h: dataclasses.replace(h, times="often").rate)


def test_what_was_received_may_be_kept():
  """By name as it came, of which the declared state is a plain mapping."""

  def client_update(received, client_state, examples, seed, h):
    return _result(received, received, examples)

  def server(variables, aggregate, num_clients, h):
    return tff_algos.ServerVariables(aggregate["model"], aggregate)

  def initial():
    return OrderedDict(model=(np.zeros([2, 3], np.float32),))

  rounds = tff_algos.Round(client_update, server)
  _compose(rounds=rounds, init_server=initial, init_client=initial)


def test_without_a_mistake_it_is_a_process():
  with tff_algos.create_runtime():
    process = _compose(
      _replaced(client_state={"a": 2.0}), init_client=lambda: {"a": _ONE}
    )
    assert process.initialize_client() == {"a": 1.0}


def test_state_that_an_estimation_returns_is_ignored():
  """Whatever it is."""

  def estimate(received, client_state, examples, seed, h):
    one = tf.constant(1.0)
    message, weight = OrderedDict(guess=one), OrderedDict(guess=one)
    return tff_algos.ClientResult(message, weight, {"mine": one * np.nan}, {})

  estimation = tff_algos.Estimation(estimate, times=1)
  process = _compose(rounds=tff_algos.Round(_update, _moved, estimation=estimation))
  assert process.is_stateless


def test_numbers_of_python_are_sent_under_a_norm_limit_too():
  def with_number(result):
    message = OrderedDict(result.message, mine=1.5)
    weight = OrderedDict(result.weight, mine=1.0)
    return result._replace(message=message, weight=weight)

  aggregators = OrderedDict(model=tff_algos.mean(), mine=tff_algos.mean())
  with tff_algos.create_runtime():
    _compose(with_number, aggregators=aggregators, norm_limit=2.0)


@pytest.mark.parametrize("name", ["SumFactory", "SecureSumFactory"])
def test_sum_in_the_place_of_a_mean_is_said(name):
  factory = getattr(tff.aggregators, name)(*[10.0] * (name == "SecureSumFactory"))
  with pytest.warns(InputWarning, match=f"^{name} adds the clients'"):
    tff_algos.build_fed_avg(_model(), model_aggregator=factory)
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    mean = tff.aggregators.UnweightedMeanFactory(factory)
    tff_algos.build_fed_avg(_model(), model_aggregator=mean)


@pytest.mark.parametrize(
  "wrap",
  [
    functools.partial(tff.aggregators.clipping_factory, 10.0),
    pytest.param(
      functools.partial(tff.aggregators.zeroing_factory, 100.0),
      marks=pytest.mark.thorough,
    ),
    tff.aggregators.concat_factory,
    pytest.param(tff.aggregators.HadamardTransformFactory, marks=pytest.mark.thorough),
  ],
  ids=["clipping", "zeroing", "concat", "hadamard"],
)
def test_sum_inside_another_factory_is_said_and_a_mean_there_is_not(wrap):
  with pytest.warns(InputWarning, match="adds the clients' updates up"):
    factory = wrap(tff.aggregators.SumFactory())
    tff_algos.build_fed_avg(_model(), model_aggregator=factory)
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    for inner in (tff.aggregators.UnweightedMeanFactory(), tff_algos.mean()):
      if wrap is not tff.aggregators.HadamardTransformFactory:
        tff_algos.build_fed_avg(_model(), model_aggregator=wrap(inner))
    mean = tff.aggregators.MeanFactory(wrap(tff.aggregators.SumFactory()))
    tff_algos.build_fed_avg(_model(), model_aggregator=mean)


def test_aggregators_without_names_are_refused():
  with pytest.raises(tff_algos.InputError, match=r"\{'model': .*\}; found a MeanF"):
    _compose(aggregators=tff_algos.mean())


@pytest.mark.parametrize(
  "given, said",
  [
    (
      dict(rounds=(_update, _moved)),
      r"^rounds must be a tff_algos\.Round, .* a tuple\.$",
    ),
    (dict(init_server=(0,)), "^init_server must be a function of no arguments; "),
    (dict(init_client=(0,)), "^init_client must be a function of no arguments; "),
  ],
)
def test_arguments_of_other_kinds_are_refused(given, said):
  with pytest.raises(tff_algos.InputError, match=said):
    _compose(**given)


@pytest.mark.parametrize("factory", ["clipping", [], type(tff_algos.mean())])
def test_aggregator_that_is_no_factory_is_refused(factory):
  with pytest.raises(tff_algos.InputError, match="must be an aggregation factory"):
    tff_algos.build_fed_avg(_model(), model_aggregator=factory)


@pytest.mark.parametrize(
  "build",
  [
    *("build_fed_reg", "build_fed_agg", "build_fed_gg", "build_pfedgp"),
    *("build_fed_curv", "build_fed_prox"),
    *("build_twafl", "build_tefl", "build_afl"),
  ],
)
def test_hyper_parameters_of_another_algorithm_are_refused(build):
  said = r"^FedAvgHparams has no \w+, which this algorithm asks for: [^\n]*$"
  known = dict(num_clients=2, num_examples=4) if build.endswith("fl") else {}
  with pytest.raises(tff_algos.InputError, match=said):
    getattr(tff_algos, build)(_model(), tff_algos.FedAvgHparams(), **known)


def test_hyper_parameters_that_afl_does_not_read_are_said():
  model = dataclasses.replace(
    _model(),
    initial_weights=(np.zeros([2, 3], np.float32), np.zeros([3], np.float32)),
    weight_names=("kernel", "bias"),
  )
  hparams = tff_algos.TwaflHparams(base=2.0)
  with pytest.warns(InputWarning, match="base"):
    tff_algos.build_afl(model, hparams, num_clients=2, num_examples=4)


def test_hyper_parameter_that_is_a_plain_field_is_refused():
  @dataclasses.dataclass(frozen=True)
  class Mine(tff_algos.FedAvgHparams):
    plain: float = 2.0

  with pytest.raises(tff_algos.InputError, match=r"Mine\.plain is a plain field: "):
    Mine()


def test_hyper_parameters_without_their_decorator_are_refused():
  """Their defaults would be those of the class before, without a word."""

  class Mine(tff_algos.FedAvgHparams):
    learning_rate: float = 0.001

  class Named(tff_algos.FedAvgHparams):
    note: ClassVar[str] = "mine"

  assert Named().learning_rate == 0.1
  with pytest.raises(InputError, match=r"^Mine has fields of its own, but is no datac"):
    Mine()


@pytest.mark.parametrize(
  "default, is_tunable, wanted",
  [
    ((3, 4), False, "a number, a word, True or False"),
    ("fast", True, "a number"),
    (True, True, "a number"),
  ],
)
def test_hyper_parameter_of_another_kind_is_refused(default, is_tunable, wanted):
  field = tff_algos.hparam(default, "Mine.", source="own", tunable=is_tunable)
  made = dataclasses.make_dataclass(
    "Mine", [("own", object, field)], bases=(tff_algos.HyperParameters,), frozen=True
  )
  said = (
    rf"^The default of Mine\.own must be {wanted}, .*; found {re.escape(repr(default))}"
  )
  with pytest.raises(InputError, match=said):
    made()


def test_hyper_parameter_that_is_not_there_is_an_attribute_that_is_not_there():
  hparams = tff_algos.FedAvgHparams()
  assert not hasattr(hparams, "pseudo_step")
  assert getattr(hparams, "pseudo_step", 7) == 7
