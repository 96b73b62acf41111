"""What a run keeps does not grow with its rounds, but for its records."""

from __future__ import annotations

import os
import threading

from tff_algos.simulation import evaluation, loop, records

_ROUNDS, _WARM = 150, 50


def test_descriptors_and_threads_stay(federation, process_of, tmp_path):
  writer = records.RecordWriter(str(tmp_path), ["round", "seconds"])
  held: list[tuple[int, int]] = []

  def on_round(record):
    writer.write(record)
    held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))

  loop.simulate(
    process_of("scaffold"),
    federation.clients,
    loop.Settings(
      rounds=_ROUNDS,
      clients_per_round=2,
      checkpoint_every=10,
      checkpoint_folder=str(tmp_path / "checkpoints"),
    ),
    evaluate=evaluation.build_evaluation(
      federation.model, federation.test_x, federation.test_y
    ),
    on_start=writer.start,
    on_round=on_round,
  )
  writer.close()
  most_at_first = [max(column) for column in zip(*held[:_WARM])]
  most_later = [max(column) for column in zip(*held[_WARM:])]
  assert all(later <= first for later, first in zip(most_later, most_at_first))
