"""What long runs are said to add in a round."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import soak


def test_growth_is_the_slope_after_the_first_quarter():
  """Before it a run takes what it will keep: that is no growth."""
  rounds = np.arange(0.0, 101.0, 5.0)
  values = 7 + 0.5 * rounds - 100 * np.maximum(25 - rounds, 0)
  assert soak.growth(rounds, values) == pytest.approx(0.5)


def test_memory_is_told_in_megabytes_of_a_million(tmp_path):
  rows = [f"fedavg,{t},1.0,{1_000_000 + 500 * t},9,3" for t in range(0, 101, 25)]
  samples = tmp_path / "soak.csv"
  samples.write_text("\n".join([",".join(soak.COLUMNS), *rows]) + "\n")
  soak.report(str(samples), str(tmp_path))
  *_, line = (tmp_path / "table.md").read_text().splitlines()
  # 1,012,500 and 1,050,000 times 1,024 bytes; 512,000 bytes a round.
  assert [cell.strip() for cell in line.split("|")[4:7]] == ["1,037", "1,075", "512.0"]
