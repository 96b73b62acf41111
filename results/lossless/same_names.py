"""CIFAR-10's original pictures under the names of the JPEG files of the same pictures.

    python results/lossless/same_names.py JPEG PNG OUT

All three are folders with train/<class>/ and test/<class>/. What is drawn for a run goes
by the order of the pictures, which goes by their names: with the same names a run on OUT
differs from the one on JPEG in the pixels alone. A JPEG file's original is the PNG file
of its class that is nearest in the squares of the differences; that none is so for two
is checked.
"""

import pathlib
import shutil
import sys

import numpy as np
from PIL import Image


def _pixels(paths: list[pathlib.Path]) -> np.ndarray:
  pictures = (np.asarray(Image.open(path).convert("RGB")) for path in paths)
  return np.stack([picture.ravel() for picture in pictures]).astype(np.float32)


def main(jpeg: pathlib.Path, png: pathlib.Path, out: pathlib.Path) -> None:
  """Copies PNG's files; prints their means and deviations, and how near JPEG's are."""
  ratios, train = [], []
  for folder in sorted(jpeg.glob("t*/*/")):
    where = folder.relative_to(jpeg)
    lossy, lossless = (sorted((root / where).iterdir()) for root in (jpeg, png))
    x, y = _pixels(lossy), _pixels(lossless)
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
    nearest = squares.argmin(1)
    if sorted(nearest) != list(range(len(lossless))):
      sys.exit(f"The pictures of {folder} are not those of {png / where}.")
    (out / where).mkdir(parents=True)
    for path, original in zip(lossy, nearest):
      shutil.copyfile(lossless[original], out / where / f"{path.stem}.png")
    ratios.append(10 * np.log10(255**2 * x.shape[1] / squares.min(1)))
    if where.parts[0] == "train":
      train.append(y.reshape(-1, 3).astype(np.uint8))
  channels = np.concatenate(train)
  for name, of in (("means", np.mean), ("deviations", np.std)):
    values = [f"{of(channel / 255):.4f}" for channel in channels.T]
    print(f"The originals' {name} by channel, for training: {', '.join(values)}")
  print(f"PSNR of the JPEG files: {np.concatenate(ratios).mean():.1f} dB in the mean")


if __name__ == "__main__":
  main(*map(pathlib.Path, sys.argv[1:]))
