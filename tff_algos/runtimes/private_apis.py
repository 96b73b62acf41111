"""All that this library takes from inside TensorFlow and TFF, with no promise of theirs.

Nothing else in `tff_algos` imports from inside them. After an upgrade of either, run
`tests/runtimes` and look at what each function here says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import saved_object_graph_pb2
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as tf_context
from tensorflow.python.ops.parallel_for.pfor import (
  ConversionNotImplementedError,
  RegisterPFor,
  _pfor_converter_registry,
  wrap,
)
from tensorflow.python.saved_model import (
  function_deserialization,
  nested_structure_coder,
)
from tensorflow.python.util import _pywrap_util_port
from tensorflow_federated.proto.v0 import computation_pb2

# What a program's state may hold besides arrays; only its subclasses are public. After an
# upgrade: whether `tff.program` has it now.
from tensorflow_federated.python.common_libs.serializable import (
  Serializable as Serializable,
)

# Which the package hides behind a function of the same name.
_pfor: Any = importlib.import_module(RegisterPFor.__module__)
_PforInput: Any = _pfor._PforInput


def parse_computation(content: bytes) -> tff.Computation:
  """The computation of `tff.framework.serialize_computation(comp).SerializeToString()`.

  The message's class has no public name. After an upgrade: whether the bytes of the
  version before are still read; `load_process` refuses them.
  """
  message = computation_pb2.Computation.FromString(content)
  return tff.framework.deserialize_computation(message)


def default_context() -> Any:
  """TFF's default context in this thread.

  TFF has `set_default_context` and no way to read it: `current` is the one in force,
  which may be another. After an upgrade: whether the stack's first is the default.

  Raises:
    RuntimeError: Another context is in force, so that the default one runs nothing.
  """
  stack: Any = tff.framework.get_context_stack()
  if stack.current is not stack._stack[0]:
    raise RuntimeError(
      "Another TFF context is in force here, so a runtime that is installed now would "
      "run nothing: leave `get_context_stack().install(...)`, or the computation that is "
      "being built, first."
    )
  return stack._stack[0]


def serve_other_threads(context: Any) -> None:
  """Has threads that have no default context of their own run things on this one.

  TFF's default context is one for each thread, and a new thread's is one object for all
  of them, which refuses everything. There is no public way to change it. After an
  upgrade: whether a new thread's stack still begins with an object that all share.

  Args:
    context: A `tff.framework.SyncContext`; None: such threads have none again.
  """
  found: list[Any] = []
  look = threading.Thread(
    target=lambda: found.append(tff.framework.get_context_stack()._stack[0])
  )
  look.start()
  look.join()
  [shared] = found
  if context is not None:
    shared.invoke = context.invoke
  else:
    vars(shared).pop("invoke", None)


@contextlib.contextmanager
def safe_for_threads() -> Iterator[None]:
  """Makes the functions that this thread calls safe to be called by several at once.

  TensorFlow's memory optimizer turns a large sum into one with a temporary variable,
  whose name clashes with that of another thread's call of the same function. What may be
  set in public is for all threads and leaves that optimizer out. After an upgrade:
  whether `test_large_sums_of_several_clients_at_once` still fails without this.
  """
  context = tf_context.context()
  before = context.function_call_options
  config = context.config
  rewrites = config.graph_options.rewrite_options
  rewrites.memory_optimization = rewrites.NO_MEM_OPT
  context.function_call_options = tf_context.FunctionCallOptions(config_proto=config)
  try:
    yield
  finally:
    context.function_call_options = before


def flat_call(function: Any) -> Callable[..., Any]:
  """A concrete function of flat tensors, without what its public call does first.

  That binds and checks each argument anew, 20 microseconds each, which with many clients
  are more than their work. And no gradient is recorded.

  What TensorFlow does before a first call on a device, such as minutes of optimizing a
  deep network, each thread would do that calls meanwhile. Here one does, by a call that
  is cancelled before it starts; `CancellationManagerContext` is not of one thread alone.
  After an upgrade: whether `flat_call` still takes all tensors, those captured last, and
  whether `test_a_function_is_made_ready_once` fails without `make_ready`.

  Args:
    function: What `tf.function(...).get_concrete_function()` gave.

  Returns:
    From tensors, of the right dtypes and shapes, to what the function gives.
  """
  inner, captured = function._inference_function, list(function.captured_inputs)
  lock, ready, cancelled = threading.Lock(), set(), cancellation.CancellationManager()
  cancelled.start_cancel()

  def make_ready(given: list[tf.Tensor], context: Any) -> None:
    name, num_outputs = inner.name.decode(), len(inner.function_type.flat_outputs)
    attributes = tuple(itertools.chain(*context.function_call_options.as_attrs().items()))
    with contextlib.suppress(tf.errors.OpError):  # A failure is told by the call itself.
      execute.execute_with_cancellation(
        name, num_outputs, given, attributes, context, cancelled
      )

  def run(*leaves: tf.Tensor) -> Any:
    given, context = [*leaves, *captured], tf_context.context()
    if context.device_name not in ready:
      with lock:
        if context.device_name not in ready:
          make_ready(given, context)
          ready.add(context.device_name)
    return inner.flat_call(given)

  return run


def is_onednn_on() -> bool:
  """Whether TensorFlow takes oneDNN's operations on CPUs, by itself or as it was told."""
  return bool(_pywrap_util_port.IsMklEnabled())


def load_functions(library: Any) -> dict[str, Any]:
  """Makes the functions of a graph's library anew, with names that nothing else has.

  `tf.graph_util.import_graph_def` would keep their names, of which two computations from
  different processes may have the same, and make no Python objects of them, which
  vectorising needs. After an upgrade: whether a SavedModel's functions are still read by
  `load_function_def_library` from these signatures.

  Args:
    library: A `FunctionDefLibrary`.

  Returns:
    For each name in the library its function.
  """
  signatures = saved_object_graph_pb2.SavedObjectGraph()
  encode = nested_structure_coder.encode_structure
  for definition in library.function:
    signature = signatures.concrete_functions[definition.signature.name]
    inputs, outputs = (
      tuple(tf.TensorSpec(None, argument.type) for argument in arguments)
      for arguments in (definition.signature.input_arg, definition.signature.output_arg)
    )
    signature.canonicalized_input_signature.CopyFrom(encode((inputs, {})))
    signature.output_signature.CopyFrom(encode(outputs))
  functions: dict[str, Any] = function_deserialization.load_function_def_library(
    library, signatures
  )
  return functions


def has_vectorised_form(operation: str) -> bool:
  """Whether `tf.vectorized_map` has a form of its own for an operation.

  `tf.vectorized_map` itself tells only by a warning when it falls back to a loop. After
  an upgrade: whether the registry still has the operations' names as its keys.
  """
  return operation in _pfor_converter_registry


def add_vectorised_form(operation: str, form: Callable[[Any], Any]) -> None:
  """Has `tf.vectorized_map` use a form for an operation that it has none for.

  There is no public registry. After an upgrade: whether TensorFlow has a form of its own
  now, which is then used and ours can go.

  Args:
    operation: Its name.
    form: From a `_PforInput` to what `stacked` gives, or a list of these.
  """
  if not has_vectorised_form(operation):
    RegisterPFor(operation)(form)


def forms_where_all_take_the_same() -> dict[str, Callable[[Any], Any]]:
  """Forms of `If` and `StatelessIf` for conditions that differ, but seldom.

  TensorFlow's own gather the inputs of those that take either branch and put the results
  together again, three passes over all of them; and run a branch that nobody takes too,
  over nobody, in which many an operation fails. Not for choices within a choice, whose
  branches would be traced four times at each level. After an upgrade: whether TensorFlow
  still does so where all take the same.
  """
  within: list[str] = []

  def form_of(operation: str) -> Callable[[Any], Any]:
    own_form = _pfor_converter_registry[operation]

    def form(inputs: Any) -> Any:
      if within:
        return own_form(inputs)
      condition, *rest = inputs.inputs

      def of_all(is_taken: bool) -> Any:
        chosen = wrap(tf.constant(is_taken), False)
        return type(inputs)(inputs.pfor, inputs.op, [chosen, *rest])

      def outputs_of(given: Any) -> Callable[[], list[Any]]:
        return lambda: [output.t for output in own_form(given)]

      within.append(operation)
      try:
        outputs = tf.cond(
          tf.reduce_all(condition.t),
          outputs_of(of_all(True)),
          lambda: tf.cond(
            tf.reduce_any(condition.t), outputs_of(inputs), outputs_of(of_all(False))
          ),
        )
      finally:
        within.pop()
      return list(map(stacked, outputs))

    return form

  return {operation: form_of(operation) for operation in ("If", "StatelessIf")}


def forms_of_loops() -> dict[str, Callable[[Any], Any]]:
  """Forms of `While` and `StatelessWhile` that trace a loop's body once, not three times.

  TensorFlow traces it to see what comes to differ from client to client, again with that,
  and again for good; of a loop within a loop that is nine times. Here floats that a body
  changes are taken to differ from the start, as they nearly always do, and what a body
  gives in their place is stacked: without that TensorFlow has no form of loops in which
  something ceases to differ. Not those that the condition looks at: if it differs,
  clients are sorted by it in each step. After an upgrade: whether TensorFlow still traces
  bodies more than once, and still has them traced by `_convert_function_call`, which
  `forms_for_own_inputs` replaces meanwhile.
  """

  def form_of(operation: str) -> Callable[[Any], Any]:
    own_form = _pfor_converter_registry[operation]

    def form(inputs: Any) -> Any:
      loop = _pfor.WhileV2(inputs)
      _BODIES.add(loop._body_func.name)
      seen = [bool(i.consumers()) for i in loop._cond_func.graph.inputs]
      inputs.stack_inputs(
        place
        for place, (given, is_seen) in enumerate(zip(inputs.inputs, seen))
        if given.t.dtype.is_floating
        and not is_seen
        and place not in loop._body_pass_through_indices
      )
      return own_form(inputs)

    return form

  return {operation: form_of(operation) for operation in ("While", "StatelessWhile")}


def forms_of_tensorflow(operations: Iterable[str]) -> dict[str, Callable[[Any], Any]]:
  """TensorFlow's own vectorised forms, as in `add_vectorised_form`."""
  return {operation: _pfor_converter_registry[operation] for operation in operations}


#: What a vectorised form raises for what it cannot do; one after another is done then.
NoVectorisedFormError = ConversionNotImplementedError


@contextlib.contextmanager
def forms_for_own_inputs(
  forms: Mapping[str, tuple[Optional[int], Callable[[Any], Any]]],
) -> Iterator[None]:
  """Has `tf.vectorized_map` use forms for what is traced in here.

  They are for where it would loop, or be wrong.

  Not for good, as others in this process may have `tf.vectorized_map` as it is. Nor does
  AutoGraph write TensorFlow's forms anew meanwhile, a fifth of a first round; and
  `_made_to_broadcast` is what TensorFlow does in a dozen operations for each input of
  each sum and product. After an upgrade: whether TensorFlow has forms of its own for
  these inputs now, and whether its forms still make functions by the module's
  `def_function` and still look at ranks when they run.

  Args:
    forms: For an operation the index of an input that TensorFlow's form, if it has one,
      takes only where it is one for all, and the form for where it is not, as in
      `add_vectorised_form`. With None for the index it is for everywhere. Where it raises
      `NoVectorisedFormError`, the loop remains.
  """

  def choose(
    before: Optional[Callable[[Any], Any]],
    index: Optional[int],
    form: Callable[[Any], Any],
  ) -> Callable[[Any], Any]:
    if before is None or index is None:
      return form
    return lambda inputs: (form if inputs.input(index).is_stacked else before)(inputs)

  registry = _pfor_converter_registry
  with _FORMS:
    before = {name: registry[name] for name in forms if name in registry}
    registry.update({n: choose(before.get(n), *given) for n, given in forms.items()})
    of_tensorflow, convert = _pfor.def_function, _pfor._convert_function_call
    _pfor._convert_function_call = functools.partial(_as_stacked_as_before, convert)
    plain = functools.partial(of_tensorflow.function, autograph=False)
    _pfor.def_function = types.SimpleNamespace(function=plain)
    make_to_broadcast = _PforInput.expanddim_inputs_for_broadcast
    _PforInput.expanddim_inputs_for_broadcast = functools.partialmethod(
      _made_to_broadcast, make_to_broadcast
    )
    try:
      yield
    finally:
      _PforInput.expanddim_inputs_for_broadcast = make_to_broadcast
      _pfor.def_function, _pfor._convert_function_call = of_tensorflow, convert
      _BODIES.clear()
      for name in forms:
        del registry[name]
      registry.update(before)


_FORMS = threading.Lock()

# The names of the bodies of loops that are given a form in the trace that goes on.
_BODIES: set[str] = set()


def _as_stacked_as_before(
  convert: Callable[..., list[Any]], function: Any, converter: Any, inputs: list[Any]
) -> list[Any]:
  """What a function gives; of a loop's body stacked where its inputs are."""
  outputs = convert(function, converter, inputs)
  if function.name not in _BODIES:
    return outputs
  return [
    _pfor._stack(output.t, converter.loop_len_vector)
    if given.is_stacked and not output.is_stacked
    else output
    for given, output in zip(inputs, outputs)
  ]


def _made_to_broadcast(inputs: Any, otherwise: Callable[[Any], None]) -> None:
  """Gives what is stacked the highest rank, behind the clients' axis, by known ranks."""
  ranks = [each.t.shape.rank for each in inputs.inputs]
  if None in ranks:
    otherwise(inputs)
    return
  # What is one for all lacks the clients' axis.
  highest = max(rank + (not each.is_stacked) for rank, each in zip(ranks, inputs.inputs))
  for place, (rank, each) in enumerate(zip(ranks, inputs.inputs)):
    if each.is_stacked:
      value = each.t
      for _ in range(highest - rank):
        value = tf.expand_dims(value, 1)
      inputs.inputs[place] = stacked(value)


def stacked(value: tf.Tensor) -> Any:
  """A result of a vectorised form: the results of all, stacked."""
  return wrap(value, True)
