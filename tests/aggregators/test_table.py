"""The words of `--aggregator`."""

from __future__ import annotations

import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import coordinate_wise, table
from tff_algos.errors import InputError


@pytest.mark.parametrize(
  "spec, called",
  [
    ("zeroing", ("robust_aggregator", (), dict(clipping=False))),
    ("clipping", ("robust_aggregator", (), dict(zeroing=False))),
    ("robust", ("robust_aggregator", (), {})),
    ("secure_sum", ("secure_aggregator", (), {})),
    ("dp:noise_multiplier=0.05", ("dp_aggregator", (0.05, 3), {})),
  ],
)
def test_words_are_tffs_aggregators(monkeypatch, spec, called):
  calls = []
  for name in ("robust_aggregator", "secure_aggregator", "dp_aggregator"):

    def record(*args, name=name, **kwargs):
      calls.append((name, args, kwargs))

    monkeypatch.setattr(tff.learning, name, record)
  table.make(spec, clients_per_round=3)
  assert calls == [called]


@pytest.mark.parametrize(
  "spec, clients, share", [("", 10, 0.1), (":share=0.25", 4, 0.25), (":share=0", 3, 0.0)]
)
def test_share_of_the_trimmed_mean_is_what_is_said(monkeypatch, spec, clients, share):
  monkeypatch.setattr(coordinate_wise, "trimmed_mean_factory", lambda share: share)
  assert table.make(f"trimmed_mean{spec}", clients_per_round=clients) == share


@pytest.mark.parametrize(
  "spec, clients, remedy",
  [
    ("", 9, "or a larger share."),
    (":share=0.25", 3, "or a larger share."),
    (":share=0.49", 2, "give more clients_per_round."),  # A share is below one half.
  ],
)
def test_a_trimmed_mean_that_trims_nobody_is_refused_for_new_runs(spec, clients, remedy):
  spec = f"trimmed_mean{spec}"
  with pytest.raises(InputError, match=f"none of {clients} with share=0.*{remedy}$"):
    table.check(spec, clients_per_round=clients)
  table.check(spec, clients_per_round=None)
  table.make(spec, clients_per_round=clients)  # As a kept run is looked at.
  table.check(spec, clients_per_round=10)
  table.check("trimmed_mean:share=0", clients_per_round=clients)
