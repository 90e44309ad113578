"""Model cards: what they say, and that a run's files cannot make them say anything else."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import birl
from birl.config import ConfigError
from birl.lab.sharing.card import MARK, card_text, code, code_block, read_subject, yaml_text
from birl.maths.statistics import bootstrap_interval
from birl.run.groups.group_results import score_statistics
from tests.lab.sharing.conftest import make_seeds
from tests.run.processes import call, call_well

EVIL = [
    "CartPole`</code><script>alert(1)</script>",
    "a | b | [x](javascript:alert(1))",
    'x"\nlicense: evil\ntags: [evil]\n---\n# evil',
    "x\n```\n<img src=x onerror=alert(1)>",
    "\u202e\u2028\x1b[31m<b>",
]


def metadata(text: str) -> dict[str, Any]:
    """The YAML in front of a card."""
    return yaml.safe_load(text.split("---\n")[1])


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(tiny_run, tmp_path / "mine"))


def changed(run: Path, name: str, **values: Any) -> dict[str, Any]:
    """Change values in a JSON file of a run."""
    stored = json.loads((run / name).read_text()) | values
    (run / name).write_text(json.dumps(stored))
    return stored


def test_a_card_has_the_hubs_metadata_and_the_policy_lies_beside_it(run):
    said = call_well("card", run, "--license", "mit")
    text = (run / "README.md").read_text()
    assert said.strip() == str(run / "README.md")
    found = metadata(text)
    assert (found["library_name"], found["license"]) == ("birl", "mit")
    assert {"deep-reinforcement-learning", "reinforcement-learning", "ppo", "CartPole-v1"} == set(found["tags"])
    [result] = found["model-index"][0]["results"]
    returns = np.array(json.loads((run / "summary.json").read_text())["evaluation"]["returns"])
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["type"] == "CartPole-v1"
    assert result["metrics"][0]["type"] == "mean_reward"
    assert result["metrics"][0]["value"] == f"{returns.mean():.2f} +/- {returns.std():.2f}"
    observation = np.full(4, 0.1, np.float32)
    saved = birl.load(run / "policy.safetensors")
    assert saved.distribution(observation).logits.tolist() == birl.load(run).distribution(observation).logits.tolist()


def test_the_score_of_one_run_is_called_one_seed_with_its_interval_over_episodes(run):
    returns = [10.0, 20.0, 60.0]
    evaluation = json.loads((run / "summary.json").read_text())["evaluation"]
    changed(run, "summary.json", evaluation=evaluation | {"returns": returns, "return_mean": 30.0})
    low, high = bootstrap_interval(np.array(returns)[:, None], np.mean)
    text = card_text(read_subject(run), None)
    assert f"**30 (95 % interval {low:.4g} to {high:.4g})**, one seed" in text
    assert "license" not in metadata(text)


def test_a_card_says_how_to_use_and_reproduce_the_run_and_what_differs_from_the_preset(run):
    text = card_text(read_subject(run), None, "me/mine")
    assert "birl pull me/mine\nbirl eval runs/me--mine --episodes 20" in text
    assert 'birl.load("runs/me--mine")' in text
    [command] = re.findall(r"^birl train .*$", text, re.MULTILINE)
    assert "--hidden-sizes 8" in command
    assert "| `hidden_sizes` | `8` | `64 64` |" in text
    assert "only with `--trust`" in text
    assert "RL Zoo" in text


def test_the_card_of_a_group_has_the_iqm_over_seeds_and_says_whose_policy_it_is(run, tmp_path):
    scores = {1: 10.0, 2: 50.0, 3: 30.0}
    group = make_seeds(run, tmp_path / "group", scores)
    birl.card(group)
    text = (group / "README.md").read_text()
    expected = score_statistics({str(seed): score for seed, score in scores.items()})
    low, high = expected["interval"]
    assert f"**{expected['iqm']:.4g} (95 % interval {low:.4g} to {high:.4g})**: interquartile mean over 3 seeds" in text
    assert "`policy.safetensors` is that of seed 2, the seed with the highest score" in text
    assert "| 2 | 50 |" in text
    value = metadata(text)["model-index"][0]["results"][0]["metrics"][0]["value"]
    assert value == f"{expected['mean']:.2f} +/- {expected['std']:.2f}"
    assert "--seeds 3 --seed 1" in text
    assert (group / "policy.safetensors").exists()


def test_runs_of_different_settings_have_no_card_together(run, tmp_path):
    shutil.copytree(run, tmp_path / "two" / "a")
    shutil.copytree(run, tmp_path / "two" / "b")
    stored = json.loads((tmp_path / "two" / "b" / "config.json").read_text())
    stored["config"]["gae_lambda"] = 0.5
    (tmp_path / "two" / "b" / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="holds runs of 2 different settings; name one of them"):
        birl.card(tmp_path / "two")


def test_a_policy_that_is_not_the_scored_one_is_said_to_be_another(run):
    subject = read_subject(run)
    other = subject._replace(origin=subject.origin._replace(env_steps=8, best_return=77.0))
    text = card_text(other, None)
    assert "is that of the checkpoint at 8 steps, whose evaluation was the best of the run with 77" in text
    assert "is that of the checkpoint" not in card_text(subject, None)


def test_a_page_of_the_users_own_is_not_replaced_and_a_card_is_with_its_license(run):
    page = run / "README.md"
    page.write_text("# Mine\n")
    code, said = call("card", run)
    assert (code, page.read_text()) == (2, "# Mine\n")
    assert "was not written by birl card, or was changed since, and is not replaced" in said
    page.unlink()
    birl.card(run, license="mit")
    birl.card(run)
    assert metadata(page.read_text())["license"] == "mit"
    page.write_text(page.read_text().replace(MARK, ""))
    with pytest.raises(ConfigError, match="is not replaced"):
        birl.card(run)


def test_another_place_for_the_card_gets_the_policy_too(run, tmp_path):
    out = tmp_path / "elsewhere" / "page.md"
    out.parent.mkdir()
    assert birl.card(run, out) == out
    assert (out.parent / "policy.safetensors").exists()
    assert not (run / "README.md").exists()


@pytest.mark.parametrize("license", ["MIT license", "mit\ntags: [evil]", "", "<b>"])
def test_a_license_that_is_no_id_is_refused(license, run):
    with pytest.raises(ConfigError, match="is not an id of the Hub"):
        birl.card(run, license=license)


@pytest.mark.parametrize("evil", EVIL)
def test_a_forged_setting_stays_text_in_yaml_and_in_markdown(evil, run):
    """In config.json and in summary.json, wherever a text may stand."""
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["env"] |= {"id": evil, "kwargs": {evil: evil}}
    (run / "config.json").write_text(json.dumps(stored))
    changed(run, "summary.json", versions={evil: evil}, machine={"processor": evil}, env=evil)
    text = card_text(read_subject(run), None)
    found = metadata(text)
    assert found.keys() == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert len(found["tags"]) == 4
    body = text.split("---\n", 2)[2].replace(MARK, "")
    interpreted = re.sub(r"(?m)^(```+)\w*\n.*?^\1$|`[^`\n]*`", "", body, flags=re.DOTALL)
    assert not re.search(r"<|javascript|evil|alert", interpreted)
    for row in re.findall(r"(?m)^\|.*\|$", body):
        assert row.count("|") in (3, 4)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_what_could_end_a_code_span_a_block_or_a_string_does_not():
    assert code("a`b|c\nd") == "`a?b?c d`"
    assert code("") == "–"
    assert code_block(["x ``` y"], "sh") == "````sh\nx ``` y\n````"
    assert yaml.safe_load(yaml_text('a: "b"\\ #c')) == 'a: "b"\\ #c'


def test_no_path_of_this_machine_gets_into_a_card(run, monkeypatch):
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["env"]["kwargs"] = {"file": "/home/someone/robots/ant.xml", "flag": True}
    (run / "config.json").write_text(json.dumps(stored))
    text = card_text(read_subject(run), None)
    assert "ant.xml" in text
    assert "/home/someone" not in text
    assert str(run.parent) not in text
