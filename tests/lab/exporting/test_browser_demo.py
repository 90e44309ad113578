"""The demo in a real browser: its CartPole is Gymnasium's, and the policy keeps the pole up."""

import base64
import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import birl
from tests.lab.chromium import PROGRAM, Browser, chromium

DEMO = Path(__file__).resolve().parents[3] / "docs" / "demo"
RUNTIME = DEMO / "ort" / "onnxruntime-web.js"
MISSING = "onnxruntime-web is missing"
SMALL = {"rollout_length": 16, "minibatches": 1, "epochs": 1, "total_steps": 128, "eval_episodes": 1, "quiet": True}

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def runtime() -> None:
    """onnxruntime-web beside the page; it is fetched once."""
    if not RUNTIME.exists():
        if shutil.which("npm") is None:
            pytest.skip("onnxruntime-web is missing, and npm, which fetches it: python docs/demo/fetch.py")
        said = subprocess.run([sys.executable, DEMO / "fetch.py"], capture_output=True, text=True, timeout=600)
        if said.returncode != 0:
            pytest.skip(f"onnxruntime-web cannot be fetched: {said.stderr.strip()}")


@pytest.fixture(scope="module")
def page(runtime):
    """The address of the page on a server of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=DEMO)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/cartpole.html"
        server.shutdown()


def open_page(browser: Browser, address: str, **screen: object) -> None:
    """Open the page and wait until the policy can act."""
    browser.open(address, **screen)
    browser.run("ready")
    assert browser.run("act !== null")


def test_the_pole_stands_for_500_steps_from_ten_starting_states(browser, page):
    open_page(browser, f"{page}?fast")
    said = "document.querySelector('#message').textContent"
    browser.run(f"new Promise(done => setInterval(() => {said} && done(), 20))")
    assert browser.run(said) == "returns at full speed: " + " ".join(["500"] * 10)
    assert browser.run("document.querySelector('#best').textContent") == "500"
    assert browser.run("document.querySelector('#episodes').textContent") == "10"
    assert browser.problems() == []
    assert all(
        address.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:")) for address in browser.requested()
    )


def test_starting_states_are_drawn_as_gymnasium_draws_them(browser, page):
    open_page(browser, page)
    states = np.array(browser.run("(random => Array.from({length: 500}, () => start(random)))(randomFrom(1))"))
    assert np.abs(states).max() <= 0.05
    assert states.std(axis=0) == pytest.approx(0.1 / np.sqrt(12), rel=0.1)  # uniform
    assert len({tuple(state) for state in states}) == 500


def test_the_page_steps_cartpole_as_gymnasium_does(browser, page):
    open_page(browser, page)
    env = gym.make("CartPole-v1").unwrapped
    actions = np.random.default_rng(0).integers(2, size=(20, 60)).tolist()
    ends = []
    for seed, chosen in enumerate(actions):
        env.reset(seed=seed)
        states = browser.run(
            f"{json.dumps(chosen)}.reduce((states, action) => fell(states.at(-1)) ? states : "
            f"[...states, step(states.at(-1), action ? FORCE : -FORCE)], [{np.asarray(env.state).tolist()}])"
            ".map(state => [state, fell(state)])"
        )
        for action, (state, fallen) in zip(chosen, states[1:], strict=False):
            _, _, terminated, _, _ = env.step(action)
            np.testing.assert_allclose(state, env.state, rtol=1e-12, atol=1e-14)
            assert fallen == terminated
        ends.append(terminated)
    assert any(ends)


def test_the_page_acts_as_the_policy_does_in_birl(browser, page):
    expected = json.loads((DEMO / "cartpole.json").read_text())
    script = (DEMO / "cartpole_policy.js").read_text()
    assert base64.b64decode(script.split('"')[1]) == (DEMO / "cartpole.onnx").read_bytes()
    open_page(browser, f"{page}?fast")
    found = browser.run(
        f"Promise.all({json.dumps(expected['observations'])}.map(observation => openPolicy(bytesOf(POLICY))"
        ".then(policy => policy(observation, true))))"
    )
    assert found == expected["actions"]
    assert set(found) == {0, 1}


def test_the_page_works_from_disk_too(browser, runtime):
    open_page(browser, f"{(DEMO / 'cartpole.html').as_uri()}?fast")
    assert browser.run("playFast([11])") == [500]
    assert browser.problems() == []


def test_keys_and_buttons_push_the_cart_and_the_policy_can_be_switched_off(browser, page):
    open_page(browser, page)
    browser.click("#acts")
    browser.call("Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowRight", code="ArrowRight")
    assert browser.run("pushing()") == 1
    # Nobody holds against it: the cart goes to the right, and the pole falls to the left.
    assert (
        browser.run(
            "(async () => { begin(randomFrom(1)); while (!episode.said) await tick(); return episode.state })()"
        )[2]
        < -0.2
    )
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="ArrowRight", code="ArrowRight")
    assert browser.run("pushing()") == 0
    browser.run("document.querySelector('[data-push=\"-1\"]').dispatchEvent(new PointerEvent('pointerdown'))")
    assert browser.run("pushing()") == -1
    browser.run("document.querySelector('[data-push=\"-1\"]').dispatchEvent(new PointerEvent('pointerup'))")
    assert browser.run("pushing()") == 0


def test_an_own_policy_can_be_loaded_also_a_recurrent_one(browser, page, tmp_path):
    birl.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", core="gru", **SMALL)
    policy = birl.load(tmp_path / "run")
    path = birl.export(policy, tmp_path / "own.onnx").path
    open_page(browser, f"{page}?fast")
    choose_file(browser, path)
    observations = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    begins = [number % 10 == 0 for number in range(40)]
    calls = [[observation.tolist(), fresh] for observation, fresh in zip(observations, begins, strict=True)]
    found = browser.run(
        f"(async () => {{ const actions = []; for (const call of {json.dumps(calls)})"
        " actions.push(await act(...call)); return actions })()"
    )
    expected, memory = [], None
    for observation, fresh in zip(observations, begins, strict=True):
        action, memory = policy.act(observation, None if fresh else memory)
        expected.append(int(action))
    assert found == expected
    assert set(found) == {0, 1}


def choose_file(browser: Browser, path: Path) -> None:
    """Choose a file as a user does, and wait until the page has answered."""
    browser.run("window.before = act; document.querySelector('#message').textContent = ''")
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
    answered = "act !== before || document.querySelector('#message').textContent"
    browser.run(f"new Promise(done => setInterval(() => ({answered}) && done(), 20))")


def test_a_file_that_is_no_policy_for_cartpole_is_refused(browser, page, tmp_path):
    birl.train("ppo", "Pendulum-v1", run_dir=tmp_path / "run", **SMALL)
    path = birl.export(tmp_path / "run", tmp_path / "other.onnx").path
    open_page(browser, page)
    choose_file(browser, path)
    said = "document.querySelector('#message').textContent"
    assert browser.run(said) == "This file is no policy for CartPole: observation [1,3], not [1,4]"
    (tmp_path / "own.onnx").write_text("no model")
    choose_file(browser, tmp_path / "own.onnx")
    assert browser.run("act === before")
    assert browser.run("document.querySelector('#message').textContent").startswith(
        "This file is no policy for CartPole: "
    )


@pytest.mark.parametrize("npm", ["forged", "absent", "failing"])
def test_nothing_but_the_known_package_is_put_beside_the_page(tmp_path, npm):
    shutil.copy(DEMO / "fetch.py", tmp_path / "fetch.py")
    programs = tmp_path / "bin"
    programs.mkdir()
    if npm != "absent":
        # npm pack NAME --silent --pack-destination FOLDER
        written = 'echo forged > "$5/onnxruntime-web.tgz"' if npm == "forged" else "echo no such host >&2; exit 1"
        (programs / "npm").write_text(f"#!/bin/sh\n{written}\n")
        (programs / "npm").chmod(0o755)
    words = [sys.executable, tmp_path / "fetch.py"]
    said = subprocess.run(words, capture_output=True, text=True, env={"PATH": str(programs)}, timeout=60)
    problems = {"forged": "nothing was written", "absent": "npm is not installed", "failing": "no such host"}
    assert said.returncode == 1
    assert problems[npm] in said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert not (tmp_path / "ort").exists()


def test_the_page_says_what_to_do_where_the_runtime_is_missing(browser, tmp_path):
    for name in ("cartpole.html", "cartpole.js", "cartpole_policy.js"):
        shutil.copy(DEMO / name, tmp_path / name)
    browser.open((tmp_path / "cartpole.html").as_uri())
    browser.run("ready")
    said = browser.run("document.querySelector('#message').textContent")
    assert said.startswith(MISSING)
    assert "python docs/demo/fetch.py" in said
    assert browser.run("act === null")


@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_the_screen_in_light_and_dark(browser, page, width, phone, dark):
    open_page(browser, page, width=width, phone=phone, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") == width
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.problems() == []


def test_a_chinese_browser_shows_chinese(browser, page):
    agent = browser.run("navigator.userAgent")
    browser.call("Network.setUserAgentOverride", userAgent=agent, acceptLanguage="zh-CN")
    browser.events.clear()
    browser.call("Page.navigate", url=page)
    browser._wait_for("Page.loadEventFired")
    assert browser.run("document.documentElement.lang") == "zh"
    assert browser.run("Object.keys(TEXTS.zh).join() === Object.keys(TEXTS.en).join()")
