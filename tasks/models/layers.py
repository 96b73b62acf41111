"""A Keras model's layers in words, for a run to say what it trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def describe_layers(keras_model: Any) -> list[str]:
  """The layers of a Keras model, each as its class and settings; nested models' too.

  Names, which Keras counts up in a process, are left out, and so are settings that are
  None or False, and structures, such as initializers, but for what is itself a layer.
  """
  lines = []
  for layer in keras_model.layers:
    lines.append(f"{type(layer).__name__}({_settings(layer)})")
    if hasattr(layer, "layers"):
      lines += [f"  {line}" for line in describe_layers(layer)]
  return lines


def _settings(layer: Any) -> str:
  try:
    config: Mapping[str, Any] = layer.get_config()
  except NotImplementedError:  # A layer of somebody's own.
    config = {}
  return _in_words(config)


def _in_words(config: Mapping[str, Any]) -> str:
  words = []
  for name, value in config.items():
    if name in ("name", "dtype", "layers", "input_layers", "output_layers"):
      continue
    if name == "trainable":
      words += [] if value else ["frozen"]
      continue
    if isinstance(value, Mapping) and not name.endswith("_initializer"):
      # A layer in a layer: a wrapper's, a cell, an activation.
      if isinstance(value.get("config"), Mapping):
        words.append(f"{name}={value.get('class_name')}({_in_words(value['config'])})")
      continue
    is_plain = isinstance(value, (str, int, float, tuple, list))
    is_nested = isinstance(value, (tuple, list)) and any(
      isinstance(part, (dict, list, tuple)) for part in value
    )
    if is_plain and not is_nested and value is not False:
      words.append(f"{name}={json.dumps(value, default=str)}")
  return ", ".join(words)
