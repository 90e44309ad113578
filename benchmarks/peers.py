"""The peers' own venvs, at pinned versions.

.venv-peers has Stable-Baselines3, sb3-contrib and SBX, .venv-rejax has rejax.

They live apart from Birl because they want their own jax and numpy, and a benchmark must not choose
for the contender.
"""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ("peers", "rejax")  # .venv-NAME has what NAME-requirements.txt lists


def ensure(name: str = "peers") -> Path:
    """The Python of a venv; installs what its requirements file lists, unless that is done."""
    requirements = Path(__file__).resolve().parent / f"{name}-requirements.txt"
    folder = ROOT / f".venv-{name}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {requirements.name} into {folder.name} (once)", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    for line in requirements.read_text().splitlines():
        if line.startswith("torch=="):
            install(python, line)  # first, so that the others keep this build
    install(python, "-r", str(requirements))
    stamp.write_text(wanted)  # last, so that an interrupted installation is started over
    return python


def install(python: Path, *requirements: str) -> None:
    """pip install into this Python's venv; pip's own output goes to stderr, where it belongs."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    for name in VENVS:
        print(ensure(name).relative_to(ROOT))
