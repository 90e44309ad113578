"""The peers' own venv: Stable-Baselines3, sb3-contrib and SBX at pinned versions.

They live apart from Birl because they want their own jax and numpy, and a benchmark must not choose
for the contender.
"""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-peers"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = Path(__file__).resolve().parent / "peers-requirements.txt"
STAMP = VENV / "installed"


def ensure() -> Path:
    """The peers' Python; installs what the requirements file lists, unless that is done already."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return PYTHON
    print(f"installing the peers into {VENV.name} (once)", file=sys.stderr, flush=True)
    venv.create(VENV, with_pip=True, clear=True)
    install(torch_line(REQUIREMENTS.read_text()))  # first, so that the others keep this build
    install("-r", str(REQUIREMENTS))
    STAMP.write_text(wanted)  # last, so that an interrupted installation is started over
    return PYTHON


def torch_line(requirements: str) -> str:
    """The requirement of torch among the others."""
    lines = [line for line in requirements.splitlines() if line.startswith("torch==")]
    if len(lines) != 1:
        raise ValueError(f"{REQUIREMENTS.name} has {len(lines)} lines torch==VERSION; it needs exactly one")
    return lines[0]


def install(*requirements: str) -> None:
    """pip install into the peers' venv; pip's own output goes to stderr, where it belongs."""
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *requirements], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(ensure().relative_to(ROOT))
