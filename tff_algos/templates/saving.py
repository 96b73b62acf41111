"""A process in a file, for programs that have neither its model nor its algorithm."""

from __future__ import annotations

import collections
import errno
import importlib
import json
import operator
import os
import sys
import zipfile
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tff_algos import durable_files
from tff_algos.client_data import Examples
from tff_algos.errors import InputError
from tff_algos.models.functional import Model, Weights
from tff_algos.privacy.accounting import GaussianMechanism
from tff_algos.runtimes import private_apis
from tff_algos.templates.identity import Identity
from tff_algos.templates.ledger import RoundTraffic
from tff_algos.templates.stateful_process import (
  PersonalModel,
  StatefulProcess,
  check_process,
)

_FORMAT = 1
_MANIFEST = "process.json"
_PARTS = (
  "initialize",
  "initialize_client",
  "get_model_weights",
  "set_model_weights",
  "get_hparams",
  "set_hparams",
)
_NEXT = "next/"
# What reading a damaged file raises.
_DAMAGES = (*durable_files.ZIP_DAMAGES, KeyError, TypeError, ValueError)


def save_process(process: StatefulProcess, path: str | os.PathLike[str]) -> None:
  """Writes a process to one file, which `load_process` reads.

  Its computations, the classes that their results are made of, its schedule, its bytes
  and its privacy are in it; its `model`, `client_work` and `personal_model`, Python
  functions, are not. That it has a `personal_model` is.

  Args:
    process: The process.
    path: The file; one that is there is replaced when the new one is whole.

  Raises:
    InputError: It is no `StatefulProcess`, or a class of its states or metrics cannot be
      imported by another program, as it was made in a function or in the program itself.
  """
  check_process(process)
  computations = {name: getattr(process, name) for name in _PARTS}
  computations.update((_NEXT + kind, fn) for kind, fn in process.next_fns.items())
  privacy = process.privacy
  manifest = {
    "format": _FORMAT,
    "tensorflow_federated": tff.__version__,
    "kinds": list(process.next_fns),
    "schedule": process.schedule,
    "traffic": {kind: each._asdict() for kind, each in process.traffic.items()},
    "privacy": privacy and privacy._asdict(),
    "population": process.population,
    "is_personal": process.personal_model is not None,
    "identity": process.identity._asdict(),
    "containers": {n: _containers(c.type_signature) for n, c in computations.items()},
  }
  with (
    durable_files.new_file(os.fspath(path)) as content,
    zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file,
  ):
    for name, computation in computations.items():
      serialized = tff.framework.serialize_computation(computation)
      file.writestr(name, serialized.SerializeToString())
    # Numbers that a process was given may be NumPy's.
    file.writestr(_MANIFEST, json.dumps(manifest, default=np.generic.item))


def load_process(path: str | os.PathLike[str]) -> StatefulProcess:
  """Reads a process that `save_process` wrote.

  Load files that you trust: their computations can read and write files.

  Returns:
    The process. If the one that was saved had a `personal_model`, this one's raises an
    `InputError` where it is called: the global model alone predicts nothing.

  Raises:
    InputError: The file is no process or damaged, another TFF or another version of this
      library has written it, or a class that its states or metrics are made of cannot be
      imported.
    FileNotFoundError: There is no such file.
  """
  path = os.fspath(path)
  try:
    with zipfile.ZipFile(path) as file:
      manifest = json.loads(file.read(_MANIFEST))
      written = {name: file.read(name) for name in manifest["containers"]}
  except (*_DAMAGES, OSError) as error:
    # Of the first kind: the place in the file that a damaged one names is none.
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
      raise
    raise InputError(
      f"{path} holds no process: give a file that tff_algos.save_process wrote."
    ) from error
  if manifest["format"] != _FORMAT:
    raise InputError(
      f"{path} was written by another version of tff_algos, in format "
      f"{manifest['format']}, where this one reads format {_FORMAT}: save the process "
      "again with this one."
    )
  if manifest["tensorflow_federated"] != tff.__version__:
    raise InputError(
      f"{path} was written with TFF {manifest['tensorflow_federated']}, whose "
      f"computations are not those of {tff.__version__}, which is here: save the process "
      "again with this one."
    )
  computations = {
    name: _loaded(content, manifest["containers"][name], path)
    for name, content in written.items()
  }
  traffic = {kind: RoundTraffic(**each) for kind, each in manifest["traffic"].items()}
  process = StatefulProcess(
    computations["initialize"],
    computations["initialize_client"],
    {kind: computations[_NEXT + kind] for kind in manifest["kinds"]},
    *(computations[name] for name in _PARTS[2:]),
    schedule=manifest["schedule"],
    count_traffic=lambda: traffic,
  )
  if manifest["privacy"]:
    process = process.with_privacy(GaussianMechanism(**manifest["privacy"]))
  if manifest.get("population"):  # Older files say neither this nor what follows.
    process = process.with_population(*manifest["population"])
  if manifest.get("is_personal"):
    process = process.with_personal_model(_no_personal_model(path))
  if manifest.get("identity"):
    process = process.with_identity(Identity(**manifest["identity"]))
  return process


def _no_personal_model(path: str) -> PersonalModel:
  """What says that there was one, as None would say that the global model predicts."""

  def refuse(weights: Weights, examples: Examples) -> Model:
    raise InputError(
      f"The process in {path} has a personal_model, which a file cannot hold: take that "
      "of the process that its algorithm builds."
    )

  return refuse


def _loaded(content: bytes, containers: Any, path: str) -> tff.Computation:
  comp = private_apis.parse_computation(content)
  return tff.framework.ConcreteComputation.with_type(
    comp, _with_containers(comp.type_signature, containers, path)
  )


# --- Python's containers, which a serialized type forgets -----------------------------


def _containers(t: Any) -> Any:
  """The containers of a type as JSON: of a structure [class, those of its elements]."""
  if isinstance(t, tff.FunctionType):
    return [_containers(t.parameter), _containers(t.result)]
  if isinstance(t, tff.FederatedType):
    return _containers(t.member)
  if isinstance(t, tff.SequenceType):
    return _containers(t.element)
  if isinstance(t, tff.StructType):
    elements = [_containers(e) for _, e in tff.structure.iter_elements(t)]
    return [_name_of(t.python_container), elements]
  return None


def _name_of(container: Optional[type]) -> Optional[str]:
  """`module:class`, or `:class` of a named tuple that its module has no name for.

  So are some of TFF's private sums, made in the body of a class or by a function.
  """
  if container is None:
    return None
  module, name = container.__module__, container.__qualname__
  if module != "__main__" and "<locals>" not in name:
    try:
      if operator.attrgetter(name)(sys.modules[module]) is container:
        return f"{module}:{name}"
    except AttributeError:
      pass
    if hasattr(container, "_fields"):
      return f":{name}"
  raise InputError(
    f"{name} cannot be imported by who loads the process: put it at the top level of a "
    "module of its own."
  )


def _with_containers(t: Any, containers: Any, path: str) -> Any:
  if isinstance(t, tff.FunctionType):
    parameter, result = containers
    return tff.FunctionType(
      t.parameter
      if t.parameter is None
      else _with_containers(t.parameter, parameter, path),
      _with_containers(t.result, result, path),
    )
  if isinstance(t, tff.FederatedType):
    member = _with_containers(t.member, containers, path)
    return tff.FederatedType(member, t.placement, t.all_equal)
  if isinstance(t, tff.SequenceType):
    return tff.SequenceType(_with_containers(t.element, containers, path))
  if isinstance(t, tff.StructType):
    name, parts = containers
    elements = [
      (n, _with_containers(e, part, path))
      for (n, e), part in zip(tff.structure.iter_elements(t), parts)
    ]
    if name is None:
      return tff.StructType(elements)
    module, _, attribute = name.partition(":")
    make: Any = collections.namedtuple
    container = (
      _imported(name, path) if module else make(attribute, [n for n, _ in elements])
    )
    return tff.StructWithPythonType(elements, container)
  return t


def _imported(name: str, path: str) -> type:
  module, _, attributes = name.partition(":")
  try:
    found: Any = operator.attrgetter(attributes)(importlib.import_module(module))
  except (ImportError, AttributeError) as error:
    raise InputError(
      f"The process in {path} needs {attributes} of {module}, which cannot be imported: "
      "install it, or start in the folder that holds it."
    ) from error
  if not isinstance(found, type):
    raise InputError(f"{path} names {name} as a class, which it is not: it was changed.")
  return found
