"""One line about each setting: the comment behind its field, or else the Help in its type."""

import inspect
import io
import tokenize
import typing
from functools import cache

from birl.settings import Help, notes_of

FEWEST_WORDS = 3  # a shorter comment, such as γ, says too little on the command line


def text_of(kind: type, name: str) -> str:
    """One line about a field of a settings class; "" if there is none."""
    comment = comments_of(kind).get(name, "")
    if len(comment.split()) >= FEWEST_WORDS:
        return comment
    texts = [
        note.text for note in notes_of(typing.get_type_hints(kind, include_extras=True)[name]) if isinstance(note, Help)
    ]
    return texts[0] if texts else comment


@cache
def comments_of(kind: type) -> dict[str, str]:
    """The comments of a dataclass's fields, by name: behind the field, or else right above it."""
    source = inspect.cleandoc(inspect.getsource(kind))
    comments: dict[str, str] = {}
    above: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not line:
            above.append(token.string)
        elif token.type in (tokenize.NEWLINE, tokenize.NL) and (line or token.line.strip() == ""):
            _add_comment(comments, line, above)
            if token.type == tokenize.NEWLINE or not line:
                line, above = [], []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            line.append(token)
    return comments


def _add_comment(comments: dict[str, str], line: list[tokenize.TokenInfo], above: list[str]) -> None:
    """Add the comment of a line `name: type = value  # comment`, if it is one."""
    if len(line) < 2 or line[0].type != tokenize.NAME or line[1].string != ":":
        return
    behind = [token.string for token in line if token.type == tokenize.COMMENT]
    if found := behind or above:
        comments[line[0].string] = " ".join(comment.lstrip("# ") for comment in found)
