"""Answers a TensorFlow Serving request with an exported model, without the server.

  echo '{"instances": [...]}' | python examples/serving_request.py served/digits/1

The same JSON can be sent to TensorFlow Serving itself, which serves the same folder:

  tensorflow_model_server --rest_api_port=8501 --model_name=digits \
    --model_base_path=$PWD/served/digits
  curl -d '{"instances": [...]}' localhost:8501/v1/models/digits:predict

The model is what `binaries/export.py --format=saved_model` writes, or the SavedModel of
`examples/tfx_trainer.py`. Of the REST API's two formats this is the one by rows.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def answer(model: Any, body: str) -> str:
  """The answer to a predict request.

  Args:
    model: What `tf.saved_model.load` gives.
    body: JSON, `{"instances": [...]}`, perhaps with a "signature_name". An instance is
      an input, or `{"inputs": input}` by the name that the signature gives it; bytes are
      `{"b64": text}`.

  Returns:
    JSON, `{"predictions": [...]}`: of each instance the outputs by name, or the output
    alone where there is one; or `{"error": text}`.
  """
  try:
    return json.dumps({"predictions": predict(model, json.loads(body))})
  except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
    return json.dumps({"error": str(error).splitlines()[0]})


def predict(model: Any, request: Mapping[str, Any]) -> list[Any]:
  """The predictions for a request, as `answer` has them.

  Raises:
    ValueError: The request is not of this form, or the model has no such signature.
  """
  instances = request.get("instances") if isinstance(request, Mapping) else None
  if not isinstance(instances, list) or not instances:
    raise ValueError('A request is {"instances": [...]} with at least one of them.')
  name = request.get("signature_name", "serving_default")
  if name not in model.signatures:
    raise ValueError(f"There is no signature {name!r}: {sorted(model.signatures)}.")
  serve = model.signatures[name]
  [(argument, spec)] = serve.structured_input_signature[1].items()
  outputs = serve(**{argument: tf.constant(_inputs(instances, argument, spec))})
  columns = {key: value.numpy().tolist() for key, value in outputs.items()}
  if len(columns) == 1:
    [values] = columns.values()
    return values
  return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _inputs(instances: Sequence[Any], argument: str, spec: tf.TensorSpec) -> np.ndarray:
  """The instances as one array of the signature's dtype and shape."""
  plain = [
    one[argument] if isinstance(one, Mapping) and argument in one else one
    for one in instances
  ]
  if spec.dtype == tf.string:
    return np.array([_as_bytes(one) for one in plain], object)
  given = np.array(plain)
  if given.dtype.kind not in "biuf" or given.shape[1:] != tuple(spec.shape[1:]):
    raise ValueError(
      f"An instance is {spec.dtype.name} {tuple(spec.shape[1:])}; found one of shape "
      f"{given.shape[1:]}."
    )
  inputs = given.astype(spec.dtype.as_numpy_dtype)
  if spec.dtype.is_integer and (inputs != given).any():
    raise ValueError(f"{given[inputs != given][0]} is no {spec.dtype.name}.")
  return inputs


def _as_bytes(value: Any) -> bytes:
  if isinstance(value, Mapping) and set(value) == {"b64"}:
    return base64.b64decode(value["b64"], validate=True)
  if isinstance(value, str):
    return value.encode()
  raise ValueError('An instance is text, or {"b64": text} for bytes.')


def main(argv: Sequence[str]) -> None:
  """Answers the request that it reads."""
  parser = argparse.ArgumentParser(description="Answers the request on standard input.")
  parser.add_argument("model", help="the folder of a SavedModel")
  args = parser.parse_args(argv)
  try:
    model = tf.saved_model.load(args.model)
  except OSError as error:
    sys.exit(str(error))
  print(answer(model, sys.stdin.read()))


if __name__ == "__main__":
  main(sys.argv[1:])
