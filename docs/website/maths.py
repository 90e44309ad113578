"""Formulas as MathML, made when the site is built: browsers need no script to show them."""

import json
import re
import shutil
from html import unescape
from importlib.resources import files
from pathlib import Path

from latex2mathml.converter import convert

FONT = "STIXTwoMath-Regular.ttf"
DISPLAYED = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
APPLIED = re.compile(r"<mo>(min|max|clip)</mo><mo")  # a function before its bracket has no space around it
IN_TEXT = re.compile(r"\\\[.*?\\\]|\\\(.*?\\\)", re.DOTALL)
NAMED_FUNCTION = re.compile(r"<mi>(log|exp|tanh)</mi>(?!<mo)")
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)


def with_formulas(html: str) -> str:
    """The page with MathML in place of TeX."""
    html = DISPLAYED.sub(lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', html)
    return INLINE.sub(lambda found: mathml(found[1], "inline"), html)


def without_formulas(index: str) -> str:
    """The index of search without TeX, which nobody wants to read or to find."""
    found = json.loads(index)
    for item in found["items"]:
        item["text"] = IN_TEXT.sub(" ", item["text"])
    return json.dumps(found, ensure_ascii=False)


def mathml(tex: str, display: str) -> str:
    """A formula in TeX, escaped for HTML, as MathML."""
    formula = convert(unescape(tex).strip(), display=display)
    formula = APPLIED.sub(r"<mi>\1</mi><mo", formula)
    return NAMED_FUNCTION.sub(r'<mi>\1</mi><mspace width="0.17em"/>', formula)


def copy_font(folder: Path) -> None:
    """Copy STIX Two Math, a font for formulas under the SIL Open Font License, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(files("ziamath.fonts") / FONT), folder / FONT)
