"""Formulas as MathML, which browsers show themselves: without a script or the network."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html import HTML5Translator


def _formula(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
  block = isinstance(node, nodes.math_block)
  try:
    writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=block))
  except MathError as error:
    logging.getLogger(__name__).warning("%s", error, location=node)
  raise nodes.SkipChildren


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
  writer.body.append(writer.starttag(node, "div", CLASS="math"))
  _formula(writer, node)


def _end_of_block(writer: HTML5Translator, node: nodes.math_block) -> None:
  writer.body.append("</div>\n")


def setup(app: Sphinx) -> dict[str, bool]:
  """Sphinx takes it instead of MathJax, which is fetched."""
  app.add_html_math_renderer("mathml", (_formula, None), (_block, _end_of_block))
  return {"parallel_read_safe": True}
