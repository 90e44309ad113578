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
IN_TEXT = re.compile(r"\\\[.*?\\\]|\\\(.*?\\\)", re.DOTALL)
SPACE = '<mspace width="0.17em"/>'
CORRECTIONS = (  # of what latex2mathml leaves to browsers, and browsers draw otherwise than TeX
    (r"<mo>(min|max|clip)</mo>(?=<mo)", r"<mi>\1</mi>"),  # no space between a function and its bracket
    (r"<mi>(log|exp|tanh)</mi>(?!<mo)", rf"<mi>\1</mi>{SPACE}"),  # but one before an argument without
    (r"(</mi>|</msub>|</msup>)(?=<mi>(?:log|exp|tanh)</mi>)", rf"\1{SPACE}"),  # and one after a factor
    (r"(&#x0003D;|&#x0002C;|&#x00028;|\[)</mo><mo>&#x02212;</mo>", r'\1</mo><mo form="prefix">&#x02212;</mo>'),
    (r"<(msub|msup)>(<mo minsize[^>]*>.</mo>)", r"<\1><mrow>\2</mrow>"),  # a bracket with an index is large, too
)
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
    for pattern, replacement in CORRECTIONS:
        formula = re.sub(pattern, replacement, formula)
    return formula


def copy_font(folder: Path) -> None:
    """Copy STIX Two Math, a font for formulas under the SIL Open Font License, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(files("ziamath.fonts") / FONT), folder / FONT)
