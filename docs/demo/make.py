"""Write the policy of the demo: cartpole.onnx, cartpole_policy.js and cartpole.json.

    python docs/demo/make.py        train PPO on CartPole by its preset, half a minute
    python docs/demo/make.py RUN    take this run of CartPole instead

The script has the ONNX file in base64, for a page that was opened from disk. The JSON has
observations with the actions that Birl takes, for the tests.
"""

import argparse
import base64
import json
import tempfile
from pathlib import Path

import numpy as np

import birl

FOLDER = Path(__file__).resolve().parent


def write(policy: birl.Policy, folder: Path) -> None:
    """Write the policy in its three forms."""
    made = birl.export(policy, folder / "cartpole.onnx")
    content = base64.b64encode(made.path.read_bytes()).decode()
    (folder / "cartpole_policy.js").write_text(f'const POLICY = "{content}";\n')
    observations = np.random.default_rng(0).uniform(-0.2, 0.2, (20, 4)).astype(np.float32)
    actions, _ = policy.act(observations)
    expected = {"observations": observations.tolist(), "actions": actions.tolist()}
    (folder / "cartpole.json").write_text(json.dumps(expected) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a run of CartPole-v1")
    run = parser.parse_args().run
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "run"
            birl.train("ppo", "CartPole-v1", seed=1, run_dir=run)
        write(birl.load(run), FOLDER)


if __name__ == "__main__":
    main()
