"""A report in a real browser: curves are drawn, values are read, nothing fails or is fetched."""

from pathlib import Path

import pytest

from birl.lab.report.sections import report
from tests.lab.chromium import PROGRAM, Browser, chromium
from tests.lab.test_report import HOSTILE, write_group
from tests.run.test_plot import make_run

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")

PATHS = "[...document.querySelectorAll('.plot path')].map(path => path.classList[0])"
READOUT = "document.querySelector('.readout').hidden ? null : document.querySelector('.readout').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    groups = [write_group(folder / name, algorithm=name) for name in ("ppo", "a2c", "dqn")]
    return report(groups, folder / "page.html").as_uri()


def choose(browser: Browser, selector: str, value: str) -> None:
    """Choose an option, as a reader does."""
    browser.run(
        f"(() => {{ const node = document.querySelector('{selector}'); node.value = '{value}'; "
        "node.dispatchEvent(new Event('change')) })()"
    )


def middle(browser: Browser) -> tuple[float, float]:
    """The middle of the frame that the axes make."""
    browser.run("document.querySelector('.plot').scrollIntoView({behavior: 'instant'})")
    x, y, width, height = browser.run(
        "(() => { const box = document.querySelector('.plot .axis').getBoundingClientRect();"
        "const lines = [...document.querySelectorAll('.plot line.axis')].map(line => line.getBoundingClientRect());"
        "const all = lines.reduce((a, b) => a.width > b.width ? a : b); return [all.x, all.y, all.width, 100] })()"
    )
    return x + width / 2, y - height


@pytest.mark.parametrize(("width", "phone"), [(1280, False), (360, True)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_without_errors_or_requests_and_fits_the_screen(browser, page, width, phone, dark):
    browser.open(page, width=width, dark=dark, phone=phone)
    assert browser.problems() == []
    assert browser.requested() == [page]
    assert browser.run("document.documentElement.scrollWidth") == width
    drawn = browser.run(PATHS)
    assert {kind: drawn.count(kind) for kind in set(drawn)} == {"band": 3, "seed": 9, "mean": 3}
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_pointing_at_the_chart_shows_the_values_there(browser, page):
    browser.open(page)
    assert browser.run(READOUT) is None
    browser.move(*middle(browser))
    # Half way from 100 to 1,000 steps; returns are steps / 10 + seed, for seeds 1 to 3.
    said = browser.run(READOUT)
    assert "550 steps" in said
    assert "a2c 57 (56 to 58)" in " ".join(said.split())
    assert "seeds 56 57 58" in " ".join(said.split())
    assert browser.run("document.querySelectorAll('.mark circle').length") == 3
    browser.move(5, 5)
    assert browser.run(READOUT) is None


def test_a_finger_on_the_chart_shows_the_values_there(browser, page):
    browser.open(page, width=390, phone=True)
    x, y = middle(browser)
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert "55" in browser.run(READOUT)
    assert browser.run("document.documentElement.scrollWidth") == 390


def test_the_keyboard_reaches_the_chart_and_reads_values(browser, page):
    browser.open(page)
    browser.run("document.querySelector('.plot').focus()")
    browser.press("Home")
    assert "100 steps" in browser.run(READOUT)
    browser.press("ArrowRight")
    assert "118 steps" in browser.run(READOUT)
    browser.press("End")
    assert "1,000 steps" in browser.run(READOUT)
    spoken = browser.run("document.querySelector('.plot').getAttribute('aria-valuetext')")
    assert spoken == "1,000 steps: ppo 102, a2c 102, dqn 102"
    browser.press("Escape")
    assert browser.run(READOUT) is None


def test_metric_axis_groups_and_seeds_can_be_chosen(browser, page):
    browser.open(page)
    choose(browser, ".axis", "seconds")
    browser.move(*middle(browser))
    assert "5.5 s" in browser.run(READOUT)
    choose(browser, ".metric", "eval/return_mean")
    assert browser.run("document.querySelector('.plot text.metric').textContent") == "evaluation return"
    assert browser.run("document.querySelectorAll('.plot circle.dot').length") >= 3  # one evaluation: dots, no lines
    choose(browser, ".metric", "episode/return")
    browser.click(".legend input")
    assert browser.run(PATHS).count("mean") == 2
    browser.click(".each")
    assert browser.run(PATHS).count("seed") == 0
    for number in (2, 3):
        browser.click(f".legend label:nth-child({number}) input")
    assert "None of the groups" in browser.run("document.querySelector('.plot').innerText")
    assert browser.problems() == []


def test_the_tab_key_stops_at_tables_only_where_they_scroll(browser, page):
    stops = "document.querySelectorAll('.scroll[tabindex]').length"
    browser.open(page, width=1280)
    assert browser.run(stops) == 0
    browser.open(page, width=360, phone=True)
    assert browser.run(stops) > 0


def test_the_switch_turns_light_into_dark_and_back(browser, page):
    browser.open(page)
    seen = []
    for _ in range(2):
        browser.click("#theme")
        seen.append(browser.run("[getComputedStyle(document.body).backgroundColor, theme.textContent]"))
    assert seen == [["rgb(20, 23, 27)", "Light"], ["rgb(255, 255, 255)", "Dark"]]


def test_a_printed_page_is_light_and_has_its_curves(browser, page):
    browser.open(page, dark=True)
    browser.run("document.documentElement.dataset.theme = 'dark'")
    browser.call("Emulation.setEmulatedMedia", media="print")
    # The text of the page, which is coloured by the scheme, is dark on white paper.
    assert browser.run("getComputedStyle(document.body).color") == "rgb(29, 33, 38)"
    assert browser.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert browser.call("Page.printToPDF", printBackground=True)["data"].startswith("JVBERi")  # %PDF


def test_strangers_text_is_shown_and_not_run(browser, tmp_path: Path):
    make_run(tmp_path / "a", algorithm=HOSTILE, env_id=f"{HOSTILE}-v0")
    make_run(tmp_path / "b", algorithm="ppo", env_id="${x}`-v0")
    browser.open(report(tmp_path, tmp_path / "page.html", title=HOSTILE).as_uri())
    assert browser.problems() == []
    assert browser.run("document.images.length + document.scripts.length") == 2
    assert browser.run("document.title").startswith("</script><script>alert(1)")
    assert "onerror" in browser.run("document.querySelector('.legend').innerText")


def test_the_policy_of_the_page_stops_scripts_and_requests(browser, page, tmp_path: Path):
    text = (Path(page.removeprefix("file://"))).read_text()
    hurt = tmp_path / "hurt.html"
    hurt.write_text(text.replace("<main", "<script>window.hurt = 1</script><img src='picture.png'><main"))
    browser.open(hurt.as_uri())
    assert browser.run("window.hurt === undefined")
    refused = browser.problems()
    assert len(refused) == 2
    assert all("violates the following Content Security Policy" in text for text in refused)


@pytest.mark.parametrize("case", ["single", "only begun", "two points"])
def test_runs_with_few_numbers_are_drawn_too(browser, tmp_path: Path, case):
    run_dir = make_run(tmp_path / "a")
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = {"single": 1, "only begun": 0, "two points": 2}[case]
    (run_dir / "metrics.jsonl").write_text("".join(lines[:kept]))
    browser.open(report(run_dir, tmp_path / "page.html").as_uri())
    assert browser.problems() == []
    if case == "only begun":
        assert "No run has metrics yet" in browser.run("document.body.innerText")
    else:
        drawn = {"single": "circle", "two points": "path"}[case]
        assert browser.run(f"document.querySelectorAll('.plot {drawn}').length") == 2  # of the seed, and the mean


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ("0", "10", [0, 2, 4, 6, 8, 10]),
        ("-0.05", "1.05", [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ("1e16 - 0.1", "1e16 + 2.1", [1e16, 1e16 + 2]),  # between these there are no numbers
    ],
)
def test_ticks_are_round_numbers_and_end(browser, page, low, high, expected):
    browser.open(page)
    assert browser.run(f"ticks({low}, {high}, 6)") == pytest.approx(expected, rel=1e-16)
