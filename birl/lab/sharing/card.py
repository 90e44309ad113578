"""A model card: README.md beside the policy, in the form of the Hugging Face Hub."""

import os
import re
from pathlib import Path

from birl.config import require
from birl.lab.sharing.card_text import MARK, card_text
from birl.lab.sharing.names import CARD, LIMITS
from birl.lab.sharing.subject import read_subject, write_policy
from birl.run.directory import POLICY
from birl.run.files import read_bytes, replacing


def card(run: str | Path, out: str | Path | None = None, license: str | None = None) -> Path:
    """Write a model card about a run or a group of seeds, and the policy beside it; its path.

    It is README.md in that directory, or `out`. A page that is there and is not such a card, or was
    changed, is not replaced. `license` is an id of the Hub such as "mit"; None: that of the card
    which is replaced, or none.
    """
    directory = Path(run)
    path = directory / CARD if out is None else Path(out)
    before = own_card(path)
    subject = read_subject(directory)
    text = card_text(subject, chosen_license(license, before))
    write_policy(subject.run_dir, path.parent / POLICY)
    with replacing(path) as file:
        file.write(text.encode())
    return path


def own_card(path: Path) -> str | None:
    """The card at this path; None if there is none. ConfigError if another page is there."""
    if not os.path.lexists(path):
        return None
    text = read_page(path)
    remedy = "move it away, or name another page with --out"
    require(MARK in text, f"{path} was not written by birl card, or was changed since, and is not replaced; {remedy}")
    return text


def read_page(path: Path) -> str:
    """The text of a page."""
    return read_bytes(path, LIMITS[CARD]).decode(errors="replace")


def chosen_license(given: str | None, card: str | None) -> str | None:
    """The license that is given, or else that of a card."""
    if given is not None:
        usable = re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", given) is not None
        require(usable, f"license {given!r} is not an id of the Hub; use one such as mit or apache-2.0")
        return given
    found = re.search(r"^license: ([a-z0-9][a-z0-9.-]*)$", card or "", re.MULTILINE)
    return found[1] if found else None
