"""A model card: README.md beside the policy, in the form of the Hugging Face Hub.

Values from a run's files are shown as they are, and do nothing else: the run may come from someone
else. In a code span neither Markdown nor HTML is interpreted; what could end the span, or the cell
of a table around it, is shown as "?".
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from birl.config import require
from birl.errors import printable
from birl.lab.comparison import Interval, Spread, compare_groups
from birl.lab.random_policy import mean_interval
from birl.lab.report.provenance import summary_texts, texts_before, texts_of
from birl.lab.report.results import mean_text, references, returns_of, summary_number, wall_seconds
from birl.lab.reproduce import SAME_BITS, commands_for, limits_of
from birl.lab.scores import final_evaluation, trained_steps
from birl.lab.sharing.shared_files import CARD, LIMITS, public_history, pulled_directory
from birl.presets.published import SOURCES
from birl.run.checkpoint import read_best
from birl.run.console import counted, number
from birl.run.directory import CHECKPOINTS, POLICY
from birl.run.files import read_bytes, replacing
from birl.run.history import RunHistory, SeedGroup, by_settings, read_histories
from birl.run.loading import find_checkpoint, has_policy_alone, load

LONGEST = 200  # characters of a value; a schedule may have a thousand points
MARK = "<!-- written by birl card; remove this line to keep your own changes -->"
PLACEHOLDER = "OWNER/NAME"  # the repository, until it is known
TRUST = (
    "What you pull is someone else's run. Birl reads settings and numbers from it and runs no code of it: "
    "there is none in it. If its settings name a Python module, Birl says so, and imports it only with `--trust`."
)


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


class Origin(NamedTuple):
    """The policy of a run that is shared."""

    env_steps: int | None  # of its checkpoint; None: only the policy is there
    best_return: float | None  # of the evaluation that chose it; None: none did, and it is the newest


class Subject(NamedTuple):
    """Runs that differ only in their seed, and the one whose policy is shared."""

    directory: Path  # of the run, or of the group
    group: SeedGroup  # as others may see it: see public.py
    run: RunHistory  # the one of the group whose policy is shared
    run_dir: Path  # where that one is here
    score: Spread  # over seeds
    score_text: str  # what the score of a seed is, in words
    scored_policy: str  # which policy that is of, over how many episodes
    origin: Origin


def read_subject(directory: Path) -> Subject:
    """The run or the group in this directory; of a group the seed with the highest score is shared.

    ConfigError if its runs differ in more than their seed, or if there is no run.
    """
    runs = read_histories(directory)
    groups = by_settings(runs)
    remedy = "name one of them, or a directory with seeds of the same settings"
    require(len(groups) == 1, f"{directory} holds runs of {len(groups)} different settings; {remedy}")
    public = [public_history(run, directory) for run in runs]
    [group] = by_settings(public)
    found = compare_groups([group])
    score = found.groups[0].score
    place = max(range(len(runs)), key=lambda index: score.values.get(str(public[index].run_dir), float("-inf")))
    run_dir = runs[place].run_dir
    return Subject(directory, group, public[place], run_dir, score, found.score, found.scored_policy, _origin(run_dir))


def write_policy(run_dir: Path, out: Path) -> None:
    """Write the policy of a run to a file; one that is all that the run has stays as it is."""
    if not (has_policy_alone(run_dir) and out.resolve() == (run_dir / POLICY).resolve()):
        load(run_dir).save(out)


def _origin(run_dir: Path) -> Origin:
    if has_policy_alone(run_dir):
        return Origin(None, None)
    saved = find_checkpoint(run_dir)
    best = read_best(run_dir / CHECKPOINTS)
    is_best = best is not None and int(best["checkpoint"]) == saved.env_steps
    return Origin(saved.env_steps, float(best["return_mean"]) if best is not None and is_best else None)


def code(text: object) -> str:
    """A value as a code span, on one line; a dash for an empty one."""
    plain = re.sub(r"[`|]", "?", printable(" ".join(str(text).split())))
    short = plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"
    return f"`{short}`" if short else "–"


def code_block(lines: Sequence[str], language: str) -> str:
    """Lines as a code_block of code, which nothing in them can end."""
    plain = [printable(line) for line in lines]
    ticks = max((len(run) for line in plain for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}{language}", *plain, fence])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown_table; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def yaml_text(text: str) -> str:
    """A text as a string of YAML, on one line. A string of JSON is one."""
    return json.dumps(printable(text[:LONGEST]), ensure_ascii=False)


def card_text(subject: Subject, license: str | None, repository: str = PLACEHOLDER) -> str:
    """The whole card."""
    run = subject.group.runs[0]
    title = f"# {code(run.settings['algorithm'])} on {code(run.settings['env.id'])}"
    parts = [MARK, title, _about(subject), *_score(subject), *_use(repository), *_settings(subject)]
    parts += [*_training(subject), *_reproduction(subject, repository), "## Trust", TRUST]
    return "\n".join(_metadata(subject, license)) + "\n\n" + "\n\n".join(parts) + "\n"


def _metadata(subject: Subject, license: str | None) -> Iterator[str]:
    """The metadata, as lines of YAML. Texts from files are strings in quotes."""
    settings = subject.group.runs[0].settings
    algorithm, env_id = yaml_text(str(settings["algorithm"])), yaml_text(str(settings["env.id"]))
    yield from ["---", "library_name: birl", "pipeline_tag: reinforcement-learning"]
    if license is not None:
        yield f"license: {license}"
    yield from ["tags:", "- deep-reinforcement-learning", "- reinforcement-learning", f"- {algorithm}", f"- {env_id}"]
    if (reward := _mean_reward(subject)) is not None:
        kind = ["  - task:", "      type: reinforcement-learning", "      name: reinforcement-learning"]
        dataset = ["    dataset:", f"      name: {env_id}", f"      type: {env_id}"]
        value = f"      value: {yaml_text(reward)}"
        metric = ["    metrics:", "    - type: mean_reward", value, "      name: mean_reward"]
        yield from ["model-index:", f"- name: {algorithm}", "  results:", *kind, *dataset, *metric]
    yield "---"


def _mean_reward(subject: Subject) -> str | None:
    """Mean and deviation, over seeds or over the episodes of one run; None without evaluations."""
    if any(final_evaluation(run) is None for run in subject.group.runs if run.problem is None):
        return None
    if len(subject.score.values) > 1 and subject.score.mean is not None and subject.score.std is not None:
        return f"{subject.score.mean:.2f} +/- {subject.score.std:.2f}"
    returns = np.array(returns_of(subject.run))
    return f"{returns.mean():.2f} +/- {returns.std():.2f}" if len(returns) else None


def _about(subject: Subject) -> str:
    settings = subject.group.runs[0].settings
    task = f"{code(settings['algorithm'])} in the environment {code(settings['env.id'])}"
    if len(subject.group.runs) > 1:
        seeds = counted(len(subject.group.runs), "seed")
        which = f"`policy.safetensors` is that of seed {subject.run.seed}, the seed with the highest score"
        return f"A policy trained by Birl with {task}, and the results of {seeds}. {which}."
    return f"A policy trained by Birl with {task}: one run, seed {subject.run.seed}."


def _score(subject: Subject) -> Iterator[str]:
    yield "## Score"
    yield _seeds_score(subject) if len(subject.score.values) > 1 else _one_score(subject)
    yield from _shared_policy(subject)
    if len(subject.score.values) > 1:
        scores = {str(run.run_dir): run for run in subject.group.runs}
        rows = [[str(scores[name].seed), number(value)] for name, value in subject.score.values.items()]
        yield markdown_table(["seed", "score"], rows)
    yield from _references(subject)


def _seeds_score(subject: Subject) -> str:
    spread = subject.score
    failed = sum(run.problem is not None for run in subject.group.runs)
    policy = f" ({subject.scored_policy})" if subject.scored_policy else ""
    reward = _mean_reward(subject)
    mean = "" if reward is None else f" The mean over seeds, with its deviation, is {reward}: `mean_reward` on the Hub."
    others = f" {counted(failed, 'seed')} failed and are left out." if failed else ""
    return (
        f"**{_with_interval(spread.iqm, spread.interval)}**: interquartile mean over "
        f"{counted(len(spread.values), 'seed')}, with its 95 % bootstrap interval. "
        f"The score of a seed is the {subject.score_text}{policy}.{mean}{others}"
    )


def _one_score(subject: Subject) -> str:
    returns = np.array(returns_of(subject.run))
    if not len(returns) or final_evaluation(subject.run) is None:
        value = next(iter(subject.score.values.values()), None)
        return "There is no score yet." if value is None else f"**{number(value)}**, one seed: {subject.score_text}."
    interval = mean_interval(returns) if len(returns) > 1 else None
    return (
        f"**{_with_interval(float(returns.mean()), interval)}**, one seed: the mean return of "
        f"{counted(len(returns), 'episode')} of the final evaluation, of the policy at the end of training, "
        "with its 95 % bootstrap interval over episodes. "
        "It says nothing about other seeds, which may learn better or worse."
    )


def _shared_policy(subject: Subject) -> Iterator[str]:
    """That the policy is not the one that was scored, if so."""
    steps, best = subject.origin
    last = trained_steps(subject.run)
    if steps is not None and steps != last:
        chosen = "" if best is None else f", whose evaluation was the best of the run with {number(best)}"
        yield (
            f"`policy.safetensors` is that of the checkpoint at {steps:,} steps{chosen}. "
            f"The score above is that of the policy at the end, after {last:,} steps."
        )


def _references(subject: Subject) -> Iterator[str]:
    """The measured score of the preset, and the highest published one, if they are known."""
    run = subject.group.runs[0]
    preset, published = references(run)
    if preset is not None and preset.measured is not None:
        steps = preset.config.run.total_steps
        seeds = counted(preset.measured.seeds, "seed")
        yield f"Birl's preset for this task reached {number(preset.measured.score)} (IQM of {seeds}, {steps:,} steps)."
    if published is not None:
        steps_text = "" if published.env_steps is None else f", {published.env_steps:,} steps"
        source = SOURCES[published.source]
        note = f"; {published.note}" if published.note else ""
        yield (
            f"The highest published score that Birl lists is {number(published.score)}: "
            f"[{published.source}]({source.url}), {code(published.env_id)}{steps_text} ({source.measured}{note})."
        )


def _use(repository: str) -> Iterator[str]:
    run_dir = pulled_directory(repository)
    yield "## How to use it"
    yield code_block([f"birl pull {repository}", f"birl eval {run_dir} --episodes 20"], "sh")
    python = ["import birl", "", f'policy = birl.load("{run_dir}")', "action, memory = policy.act(observation)"]
    yield code_block(python, "python")


def _settings(subject: Subject) -> Iterator[str]:
    """The settings that differ from those of the preset, or else from the algorithm's defaults."""
    texts = texts_of(subject.group)
    before, source = texts_before(subject.group)
    yield "## Settings"
    if before is None:
        yield markdown_table(["setting", "value"], [[code(name), code(value)] for name, value in texts.items()])
        return
    different = [name for name in texts if texts[name] != before.get(name, "")]
    if not different:
        yield f"All settings are those of the {source}."
        return
    yield f"Settings that differ from the {source}; all are in `config.json`:"
    rows = [[code(name), code(texts[name]), code(before.get(name, ""))] for name in different]
    yield markdown_table(["setting", "value", source], rows)


def _training(subject: Subject) -> Iterator[str]:
    runs = subject.group.runs
    steps = mean_text([float(trained_steps(run)) for run in runs])
    wall = mean_text([wall_seconds(run) for run in runs])
    cpu = mean_text([summary_number(run, "cpu_seconds") for run in runs])
    yield "## Training"
    mean = " (means over seeds)" if len(runs) > 1 else ""
    yield markdown_table(["environment steps", "wall seconds", "CPU seconds"], [[steps, wall, cpu]])
    yield f"Time and steps of a run{mean}. Versions: {_facts(subject.run, 'versions')}."
    yield f"Machine: {_facts(subject.run, 'machine')}."


def _facts(run: RunHistory, part: str) -> str:
    found = summary_texts(run, part)
    return ", ".join(code(f"{name} {text}") for name, text in list(found.items())[:50]) or "not known"


def _reproduction(subject: Subject, repository: str) -> Iterator[str]:
    place = pulled_directory(repository)  # where a command finds the settings that no option can write
    runs = [dataclasses.replace(run, run_dir=Path(place)) for run in subject.group.runs]
    commands = commands_for(runs)
    yield "## How to reproduce it"
    if commands:
        yield code_block(commands, "sh")
    yield from limits_of(runs) or [SAME_BITS]


def _with_interval(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return "–"
    ends = "" if interval is None else f" (95 % interval {number(interval[0])} to {number(interval[1])})"
    return f"{number(value)}{ends}"
