"""Try environments of other packages: check-env, one update, an evaluation; write the pages' table.

    python benchmarks/packages.py --venvs DIRECTORY [--only minigrid popgym]

Each package gets a virtual environment of its own in DIRECTORY, with the versions in
constraints.txt except those that stand in its way. It is made once, and used again later.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = {"docs/other-packages.md": "en", "docs/other-packages.zh-CN.md": "zh"}
BEGIN, END = "<!-- packages:begin -->", "<!-- packages:end -->"
RESULTS = ROOT / "benchmarks" / "packages.json"
SECONDS = 900.0  # the time limit of one task
SMALL: dict[str, Any] = {"num_envs": 2, "eval_episodes": 1, "eval_max_steps": 100, "hidden_sizes": [16]}
UPDATE = {
    "ppo": SMALL | {"rollout_length": 16, "epochs": 1, "minibatches": 1, "total_steps": 32},
    "sac": SMALL | {"rollout_length": 8, "batch_size": 8, "learning_starts": 16, "replay_size": 100, "total_steps": 40},
}


class Task(NamedTuple):
    """An environment to try, and what it needs besides its id."""

    env_id: str
    algorithm: str = "ppo"
    settings: dict[str, Any] = {}  # noqa: RUF012


class Package(NamedTuple):
    """A package, what to install, and which versions of constraints.txt it cannot use."""

    name: str
    requirements: list[str]
    tasks: list[Task]
    unpinned: tuple[str, ...] = ()


PACKAGES = [
    Package(
        "minigrid",
        ["minigrid"],
        [
            Task("MiniGrid-Empty-5x5-v0", settings={"ignore_observations": ["mission"]}),
            Task("MiniGrid-DoorKey-5x5-v0", settings={"wrappers": ["minigrid.wrappers:ImgObsWrapper"]}),
            Task("BabyAI-GoToRedBall-v0", settings={"wrappers": ["minigrid.wrappers:FlatObsWrapper"]}),
        ],
    ),
    Package("highway_env", ["highway-env"], [Task("highway-fast-v0"), Task("parking-v0", "sac")]),
    Package("popgym", ["popgym"], [Task("popgym-RepeatPreviousEasy-v0"), Task("popgym-PositionOnlyCartPoleEasy-v0")]),
    Package(
        "gymnasium_robotics",
        ["gymnasium-robotics", "mujoco<3.9"],
        [Task("FetchReach-v4", "sac"), Task("PointMaze_UMaze-v3", "sac"), Task("AdroitHandDoor-v1", "sac")],
        unpinned=("mujoco", "mujoco-core", "mujoco-studio"),
    ),
    Package(
        "shimmy",
        ["shimmy[dm-control]", "mujoco<4"],
        [Task("dm_control/cartpole-balance-v0"), Task("dm_control/cheetah-run-v0", "sac")],
        unpinned=("mujoco", "mujoco-core", "mujoco-studio", "dm-control"),
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, help="directory of the virtual environments")
    parser.add_argument("--only", nargs="*", default=[], help="names of packages; default: all")
    parser.add_argument("--task", help="used by the script itself: a Task as JSON")
    options = parser.parse_args()
    if options.task:
        print(json.dumps(try_task(Task(*json.loads(options.task)))))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for package in PACKAGES:
        if not options.only or package.name in options.only:
            results[package.name] = try_package(package, options.venvs / package.name)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for page, language in PAGES.items():
        write_table(ROOT / page, table(results, language))


def try_package(package: Package, venv: Path) -> dict[str, Any]:
    """What installing the package and trying its tasks gave."""
    python = venv / "bin" / "python"
    installed = make_venv(package, venv) if not python.exists() else ""
    if installed:
        return {"version": "", "versions": {}, "tasks": [{"env_id": "", "result": installed}]}
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format", "json"], text=True)
    versions = {entry["name"].lower().replace("-", "_"): entry["version"] for entry in json.loads(listed)}
    requires = {name: versions[name] for name in ("gymnasium", "mujoco", "dm_control", "numpy") if name in versions}
    tasks = [run_task(python, task) for task in package.tasks]
    return {"version": versions.get(package.name, ""), "versions": requires, "tasks": tasks}


def make_venv(package: Package, venv: Path) -> str:
    """Make a virtual environment with the package and what Birl needs; why that failed, or ""."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    kept = [pin for pin in pins if pin.partition("==")[0].lower() not in package.unpinned]
    (venv / "constraints.txt").write_text("\n".join(kept) + "\n")
    install = [venv / "bin" / "python", "-m", "pip", "install", "-q", "-c", venv / "constraints.txt", ROOT]
    finished = subprocess.run([*install, *package.requirements], capture_output=True, text=True, check=False)
    if finished.returncode == 0:
        return ""
    return [line for line in finished.stderr.splitlines() if line.startswith("ERROR")][-1]


def run_task(python: Path, task: Task) -> dict[str, Any]:
    """The outcome of a task in a process of its own."""
    command = [python, __file__, "--task", json.dumps(task)]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy", "JAX_PLATFORMS": "cpu"}
    described = {"env_id": task.env_id, "algorithm": task.algorithm, "settings": task.settings}
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=variables,
            cwd=tempfile.gettempdir(),
        )
    except subprocess.TimeoutExpired:
        return described | {"result": f"not finished after {SECONDS:.0f} s"}
    if finished.returncode != 0:
        return described | {"result": finished.stderr.strip().splitlines()[-1]}
    return described | json.loads(finished.stdout.strip().splitlines()[-1])


def try_task(task: Task) -> dict[str, Any]:
    """Check the environment, train one update, and evaluate; in this process."""
    import birl
    from birl.envs.check.checking import check_env

    settings = task.settings | {name: tuple(value) for name, value in task.settings.items() if isinstance(value, list)}
    findings = check_env(birl.EnvConfig(task.env_id, **settings))
    errors = [f"check-env: {found.title}: {found.explanation}" for found in findings if found.level == "error"]
    exact = any(found.title == "exact resume" for found in findings)
    if any(found.title == "cannot be made" for found in findings):
        return {"result": errors[0], "exact": False}
    with tempfile.TemporaryDirectory() as directory:
        run_dir = str(Path(directory) / "run")
        words = UPDATE[task.algorithm] | settings
        summary = birl.train(task.algorithm, task.env_id, run_dir=run_dir, quiet=True, **words)
    if summary["evaluation"]["episodes"] != 1:
        errors.append("no evaluation")
    return {"result": "; ".join(errors) or "works", "exact": exact, "env_steps": summary["env_steps"]}


HEADS = {
    "en": ["package", "id", "what was needed besides the id", "tried with", "result", "exact resume"],
    "zh": ["软件包", "环境名", "除环境名外需要什么", "用什么试过", "结果", "精确恢复训练"],
}
WORDS = {
    "en": {"works": "works", True: "yes", False: "no", "nothing": "nothing"},
    "zh": {"works": "可用", True: "是", False: "否", "nothing": "无"},
}


def table(results: dict[str, Any], language: str) -> str:
    """The table of a page."""
    words = WORDS[language]
    rows = [HEADS[language], ["---"] * len(HEADS[language])]
    for package in PACKAGES:
        if package.name not in results:
            continue
        found = results[package.name]
        pins = [f"{name} {version}" for name, version in found["versions"].items() if name in ("mujoco", "dm_control")]
        name = ", ".join([f"{package.name} {found['version']}", *pins])
        for task in found["tasks"]:
            needs = " ".join(needed(task.get("settings", {}))) or words["nothing"]
            exact = words[task["exact"]] if "exact" in task else ""
            result = words.get(task["result"], task["result"]).replace("|", "\\|")
            rows.append([name, f"`{task['env_id']}`", needs, task.get("algorithm", ""), result, exact])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def needed(settings: dict[str, Any]) -> list[str]:
    """Settings as options of the command line."""
    wrappers = [f"`--wrapper {wrapper}`" for wrapper in settings.get("wrappers", [])]
    ignored = settings.get("ignore_observations", [])
    return [*wrappers, *([f"`--ignore-observations {' '.join(ignored)}`"] if ignored else [])]


def write_table(page: Path, text: str) -> None:
    """Put the table between the page's two marks."""
    content = page.read_text()
    before, after = content.partition(BEGIN)[0], content.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
