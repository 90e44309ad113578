"""Whether a command may import modules of the current directory."""

import os
import sys


def allow_modules_here(*names: str | None, trust: bool = False) -> None:
    """Let Python find modules in the current directory, if the user names one or trusts the run.

    Otherwise it does not: the current directory may be a run that somebody else made.
    """
    if trust or any(":" in (name or "") for name in names):
        sys.path.append(os.getcwd())
