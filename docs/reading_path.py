"""How much code a reader follows from `birl train ppo CartPole-v1` to new weights.

    python docs/reading_path.py            print the count
    python docs/reading_path.py --write    write it into the READMEs, too

The command is run for two updates, and every function of Birl that it calls is recorded. The count
is the lines of code of these functions: whole functions with all their branches, without blank
lines, comments, docstrings and imports. A class adds its fields if it is constructed or one of its
methods is called. Building the networks, acting, collecting, the update, the optimiser and the
normaliser are all in it.

The count has two parts. "Training" is `birl.ppo.train`; the calls `PPO(...).learn()` of
Stable-Baselines3 and `python ppo.py` of CleanRL do the same work and are counted by the same rule.
"Command" is what comes before it: the command line, settings, and the loop of the driver. SB3 has
no command line.

birl/accel is switched off: without it results differ by rounding only, and the plain forms in
birl/speed.py are counted. Left out, together with what only they call: environments; logging,
evaluation and checkpoints; functions that only check settings. Their lines are printed too. For SB3
the list of functions below is read from its source, not recorded. `--peers FOLDER` counts SB3 and
CleanRL again in a folder that holds both packages; otherwise the figures of these versions are
printed.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import tokenize
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "birl"
COMMAND = ("__init__.py", "cli/", "config.py", "settings.py", "registry.py", "presets/")
COMMAND += ("run/configure.py", "run/driver.py", "run/starting.py", "run/loop.py", "run/opening.py")
LEFT_OUT = {
    "environments": ("envs/", "workers/"),
    "checks of settings": ("checks.py", "env_checks.py", "config_json.py", "errors.py"),
    "logging, evaluation, checkpoints": ("run/", "rollouts/episode_stats.py"),
}
OWN_LINES = (
    "algos/ppo.py",
    "algos/a2c.py",
    "rollouts/collector.py",
    "algos/async_q.py",
)
PEERS = {"Stable-Baselines3 2.9.2": (1081, 10), "CleanRL 1.2.0, ppo.py": (226, 1)}  # lines, files
SB3 = {  # a class stands for its fields
    "ppo/ppo.py": "PPO: __init__ _setup_model train learn",
    "common/on_policy_algorithm.py": "OnPolicyAlgorithm: __init__ _setup_model collect_rollouts learn",
    "common/base_class.py": "BaseAlgorithm: __init__ _setup_lr_schedule _update_current_progress_remaining"
    " _update_learning_rate _get_policy_from_name _setup_learn set_random_seed",
    "common/policies.py": "BaseModel: __init__ make_features_extractor extract_features device set_training_mode;"
    " BasePolicy: __init__ init_weights;"
    " ActorCriticPolicy: __init__ _build_mlp_extractor _build forward extract_features"
    " _get_action_dist_from_latent evaluate_actions predict_values",
    "common/buffers.py": "BaseBuffer: __init__ swap_and_flatten reset to_torch;"
    " RolloutBuffer: __init__ reset compute_returns_and_advantage add get _get_samples",
    "common/distributions.py": "Distribution: __init__ get_actions;"
    " CategoricalDistribution: __init__ proba_distribution_net proba_distribution log_prob entropy sample;"
    " make_proba_distribution",
    "common/torch_layers.py": "BaseFeaturesExtractor: __init__ features_dim; FlattenExtractor: __init__ forward;"
    " MlpExtractor: __init__ forward forward_actor forward_critic",
    "common/utils.py": "explained_variance; update_learning_rate; FloatSchedule: __init__ __call__;"
    " ConstantSchedule: __init__ __call__; get_device; obs_as_tensor",
    "common/preprocessing.py": "is_image_space; preprocess_obs; get_obs_shape; get_flattened_obs_dim; get_action_dim",
    "common/type_aliases.py": "RolloutBufferSamples",
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
NUMBER = re.compile(r"`[^`]*`|\]\([^)]*\)|(?<![A-Za-z\d.,])(\d(?:[\d,.]*\d)?)")  # or code, or a link's target
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)

Definitions = dict[str, set[int]]  # lines by name; those of a class are without its methods


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def definitions(path: Path) -> Definitions:
    """The lines of code of each function, class and method in a file."""
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    found: Definitions = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = lines & _span(node)
        if isinstance(node, ast.ClassDef):
            methods = {method.name: _span(method) for method in node.body if isinstance(method, ast.FunctionDef)}
            found |= {f"{node.name}.{name}": lines & span for name, span in methods.items()}
            found[node.name] -= set().union(*methods.values())
    return found


class Recorder:
    """A profile function: records which functions of Birl run until PPO's second update."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.left_out: set[CodeType] = set()
        self.classes: set[type] = set()
        self.depth = 0  # of calls that are left out
        self.updates = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_filename == "<string>" and event == "call" and not self.depth:  # a generated constructor
            self.classes.add(frame.f_locals.get("_cls") or type(frame.f_locals.get("self")))
        if not code.co_filename.startswith(str(PACKAGE)) or event not in ("call", "return"):
            return
        name = _name_in_package(code)
        outside = code.co_name == "<module>" or area_left_out(name) is not None
        if event == "call":
            if outside and code.co_name != "<module>":
                self.left_out.add(code)
            elif not self.depth and not outside:
                self.codes.add(code)
        self.depth += outside if event == "call" else -outside
        self.updates += event == "return" and name == "algos/ppo.py" and code.co_name == "train"
        if self.updates == 2:
            sys.setprofile(None)


def area_left_out(name: str) -> str | None:
    """The area that a file belongs to, if that area is left out."""
    if name.startswith(COMMAND):
        return None
    return next((area for area, paths in LEFT_OUT.items() if name.startswith(paths)), None)


def record_training() -> Recorder:
    """What runs in two updates of the command, with birl/accel switched off."""
    os.environ["BIRL_ACCEL"] = "0"
    sys.path.insert(0, str(PACKAGE.parent))
    from birl.cli import main

    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        options = ["--total-steps", "400", "--eval-episodes", "1", "--run-dir", f"{folder}/run"]
        sys.setprofile(recorder)
        try:
            code = main(["train", "ppo", "CartPole-v1", *options])
        finally:
            sys.setprofile(None)
    assert code == 0
    assert recorder.updates == 2
    return recorder


def lines_of(codes: set[CodeType], classes: Collection[type] = ()) -> dict[str, dict[str, int]]:
    """The number of lines of these functions and classes, by file and name."""
    found: dict[str, dict[str, int]] = {}
    for name in sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")):
        starts = {code.co_firstlineno for code in codes if _name_in_package(code) == name}
        here = definitions(PACKAGE / name)
        module = "birl." + name.removesuffix(".py").replace("/", ".")
        read = {made.__qualname__ for made in classes if made.__module__ == module}
        for definition, span in here.items():
            if span & starts:
                read |= {definition, definition.rpartition(".")[0]}
        counts = {definition: len(span) for definition, span in here.items() if definition in read and span}
        if counts:
            found[name] = counts
    return found


def count_listed(folder: Path, listed: dict[str, str]) -> int:
    """The lines of code of the definitions listed for each file of a folder."""
    total = 0
    for name, text in listed.items():
        here = definitions(folder / name)
        for entry in text.split(";"):
            owner, _, methods = entry.strip().partition(":")
            total += len(here[owner]) + sum(len(here[f"{owner}.{method}"]) for method in methods.split())
    return total


def count_script(path: Path, left_out: tuple[str, ...]) -> int:
    """The lines of code of a script, without its imports and the functions that are left out."""
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", None) in left_out:
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def count_peers(folder: Path) -> dict[str, tuple[int, int]]:
    """Lines and files of SB3 and CleanRL, counted in the folder that holds these packages."""
    sb3 = count_listed(folder / "stable_baselines3", SB3), len(SB3)
    cleanrl = count_script(folder / "cleanrl" / "ppo.py", ("make_env",)), 1
    return dict(zip(PEERS, (sb3, cleanrl), strict=True))


def write_counts(path: Path, bullet: list[str], paragraph: list[str]) -> None:
    """Write numbers, in order, into the two passages of a README that state the count."""
    text = path.read_text(encoding="utf-8")
    for start, end, numbers in ((r"^- \*\*(?:Readable|好读)", r"^- ", bullet), ("^`python docs", r"^\n", paragraph)):
        passage = re.compile(f"{start}.*?(?={end})", re.MULTILINE | re.DOTALL)
        left = iter(numbers)
        text = passage.sub(
            lambda found, left=left: NUMBER.sub(lambda n: n[0] if n[1] is None else next(left), found[0]), text
        )
    path.write_text(text, encoding="utf-8")


def show(part: str, files: dict[str, dict[str, int]]) -> None:
    """Print the definitions of a part, file by file, and the sum."""
    for name, counts in files.items():
        shown = ", ".join(f"{definition} {lines}" for definition, lines in counts.items())
        _print(f"{sum(counts.values()):5} birl/{name}: {shown}")
    _print(f"{part}: {_total(files):,} lines in {len(files)} files\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="lines of code from the command to new weights", allow_abbrev=False)
    parser.add_argument("--peers", type=Path, help="a folder that holds stable_baselines3/ and cleanrl/")
    parser.add_argument("--write", action="store_true", help="write the count into the READMEs")
    arguments = parser.parse_args()
    recorder = record_training()
    files = lines_of(recorder.codes, recorder.classes)
    command = {name: counts for name, counts in files.items() if name.startswith(COMMAND)}
    training = {n: c for n, c in files.items() if n not in command and area_left_out(n) is None}
    show("command", command)
    show("training", training)
    left_out = lines_of(recorder.left_out)
    for area in LEFT_OUT:
        _print(f"left out, {area}: {_total({n: c for n, c in left_out.items() if area_left_out(n) == area}):,} lines")
    _print("")
    peers = count_peers(arguments.peers) if arguments.peers else PEERS
    for peer, (lines, count) in peers.items():
        _print(f"{peer}: {lines:,} lines in {count} file{'s' * (count > 1)}")
    _print("")
    own = {name: len(code_lines((PACKAGE / name).read_text(encoding="utf-8"))) for name in OWN_LINES}
    for name, lines in own.items():
        _print(f"{lines:5} lines in all of birl/{name}")
    if arguments.write:
        (sb3, sb3_files), (cleanrl, _) = peers.values()
        path = _total(training)
        for readme in PACKAGE.parent.glob("README*.md"):
            bullet = (own["algos/ppo.py"], path)
            paragraph = (path, len(training), _total(command), sb3, sb3_files, cleanrl)
            write_counts(readme, [f"{n:,}" for n in bullet], [f"{n:,}" for n in paragraph])


def _name_in_package(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).as_posix()


def _span(node: ast.FunctionDef | ast.ClassDef) -> set[int]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return set(range(first, (node.end_lineno or 0) + 1))


def _total(files: dict[str, dict[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in files.values())


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
