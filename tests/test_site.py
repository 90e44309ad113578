"""The documentation site: navigation, links of its pages, the API reference, the build."""

import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import birl
from docs.website import check_links, nav, pages
from docs.website.api import ApiError, api_pages
from docs.website.code import CodeError
from docs.website.files import files_page
from tests.markdown import ENGLISH, ROOT, name_of

TOOLS = ("zensical", "mkdocstrings", "mkdocstrings_handlers", "latex2mathml", "ziamath")
ALL = nav.pages_of(ROOT)


def entries(navigation: object) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in entries(part)]


def in_site(source: str, text: str, language: str = "en") -> tuple[str, set[str]]:
    """This text with its links as they are in the site, if it were on this page."""
    return pages.with_links(text, lambda target: pages.link_in_site(ROOT, source, target, ALL, language))


# Navigation


def test_the_site_begins_with_start_here_and_has_its_sections_in_order():
    for language, titles in {
        "en": ["Start here", "Guides", "Algorithms", "API", "How it works", "Results"],
        "zh": ["从这里开始", "指南", "算法", "API", "内部原理", "结果"],
    }.items():
        sections = nav.navigation([*ALL, *api_pages(ROOT, language)], language)
        named = [title for section in sections for title in section]
        assert [title for title in named if title not in ("Tutorials", "教程")] == titles
        assert entries(sections)[0] == "index.md"


def test_every_page_of_the_repository_is_in_the_navigation_once():
    listed = entries(nav.navigation(ALL, "en"))
    assert sorted(listed) == sorted(map(nav.site_path, map(name_of, ENGLISH)))


def test_a_page_in_no_section_is_refused():
    with pytest.raises(nav.NavigationError, match=r"docs/lost\.md is in 0 sections"):
        nav.navigation([*ALL, "docs/lost.md"], "en")


def test_a_page_in_two_sections_is_refused(monkeypatch):
    monkeypatch.setattr(nav, "SECTIONS", (*nav.SECTIONS, nav.Section("Again", "又", ("docs/ppo.md",))))
    with pytest.raises(nav.NavigationError, match=r"docs/ppo\.md is in 2 sections"):
        nav.navigation(ALL, "en")


def test_tutorials_follow_start_here_in_the_order_of_their_names():
    tutorials = ["docs/tutorials/1-first.md", "docs/tutorials/2-second.md"]
    known = [page for page in ALL if not page.startswith("docs/tutorials/")]
    listed = entries(nav.navigation([*known, *tutorials], "en"))
    assert listed[2:4] == ["tutorials/1-first.md", "tutorials/2-second.md"]


# Pages and their links


@pytest.mark.parametrize(
    ("source", "link", "there"),
    [
        ("docs/usage.md", "ppo.md#options", "ppo.md#options"),
        ("docs/usage.md", "start.md", "index.md"),
        ("docs/usage.md", "../README.md#speed", "readme.md#speed"),
        ("docs/usage.md", "../examples", "examples.md"),
        ("docs/usage.md", "../benchmarks/RESULTS.md", "measurements.md"),
        ("docs/usage.md", "#settings", "#settings"),
        ("docs/usage.md", "https://arxiv.org/abs/1707.06347", "https://arxiv.org/abs/1707.06347"),
        ("docs/usage.zh-CN.md", "ppo.zh-CN.md#选项", "ppo.md#选项"),
        ("README.md", "docs/speed.md", "speed.md"),
        ("docs/tutorials/1-first.md", "../ppo.md", "../ppo.md"),
    ],
)
def test_links_to_pages_lead_to_pages_of_the_site(source, link, there):
    language = "zh" if "zh-CN" in source else "en"
    assert in_site(source, f"See [this]({link}).", language) == (f"See [this]({there}).", set())


def test_links_to_code_lead_to_a_page_that_shows_it():
    file = "birl/algos/ppo.py"
    assert in_site("docs/ppo.md", f"[code](../{file})") == (f"[code](source/{file}.md)", {file})
    assert (ROOT / file).read_text().rstrip() in pages.source_page(ROOT, file)


@pytest.mark.parametrize(
    ("name", "line"),
    [("`gae`", "def gae("), ("`gae`, Schulman et al. 2016, eq. 16", "Schulman et al. 2016, eq. 16")],
)
def test_a_link_that_names_a_function_leads_to_its_line(name, line):
    file = "birl/maths/returns.py"
    text = pages.with_lines_of_code(ROOT, "docs/ppo.md", f"[{name}](../{file})")
    [number] = [n for n, code in enumerate((ROOT / file).read_text().splitlines(), 1) if line in code]
    assert in_site("docs/ppo.md", text) == (f"[{name}](source/{file}.md#L-0-{number})", {file})


def test_a_link_that_names_a_file_leads_to_all_of_it():
    for name in ("`returns.py`", "`birl/maths/returns.py`", "returns"):
        link = f"[{name}](../birl/maths/returns.py)"
        assert pages.with_lines_of_code(ROOT, "docs/ppo.md", link) == link


def test_a_link_to_a_function_that_the_file_has_not_ends_the_build():
    with pytest.raises(CodeError, match=r"returns\.py defines nothing 0 times"):
        pages.with_lines_of_code(ROOT, "docs/ppo.md", "[`nothing`](../birl/maths/returns.py)")


def test_the_page_of_files_has_the_first_line_of_each_file_and_its_source():
    page, files = files_page(ROOT, "en")
    assert {path for path in files if path.startswith("birl/algos/")} >= {
        home.partition(":")[0].replace(".", "/") + ".py" for home in birl.ALGORITHMS.values()
    }
    assert f"| [`ppo.py`](source/birl/algos/ppo.py.md) | {birl.ppo.__doc__.splitlines()[0]} |\n" in page
    assert page.count("\n## birl/algos\n") == 1


def test_pictures_are_found_from_every_page():
    picture = "docs/images/lunarlander.gif"
    assert in_site("README.md", f'<img src="{picture}">') == ('<img src="images/lunarlander.gif">', {picture})
    assert in_site("docs/ppo.md", "![a](images/lunarlander.gif)") == ("![a](images/lunarlander.gif)", {picture})


def test_links_in_html_are_links():
    text = '<a href="ppo.{}#options"><img src="images/lunarlander.gif"></a>'
    assert in_site("docs/usage.md", text.format("md")) == (text.format("html"), {"docs/images/lunarlander.gif"})


def test_code_keeps_its_brackets():
    text = "```python\nlist[int](given)\n```\n"
    assert in_site("docs/ppo.md", text) == (text, set())


def test_a_link_to_nothing_ends_the_build():
    with pytest.raises(pages.LinkError, match=r"docs/ppo\.md links to nothing\.md"):
        in_site("docs/ppo.md", "[x](nothing.md)")


def test_the_link_between_languages_is_left_to_the_header():
    assert pages.without_language_links("# A\n\nEnglish | [中文](a.zh-CN.md)\n\nB\n", "docs/a.md") == "# A\n\nB\n"
    assert pages.without_language_links("# A\n\n[English](a.md) | 中文\n\nB\n", "docs/a.zh-CN.md") == "# A\n\nB\n"
    assert pages.without_language_links("In a file. [中文](a.zh-CN.md)\n", "docs/a.md") == "In a file.\n"


def test_no_page_of_the_site_speaks_of_its_twin():
    for page in ALL:
        for language in ("en", "zh"):
            text = pages.site_page(ROOT, page, ALL, language).text
            assert not re.search(r"\[(中文|English)\]\(", text), page


def test_a_page_without_a_twin_says_so_in_chinese_and_its_anchors_are_those_of_the_chinese_pages():
    text = pages.site_page(ROOT, "CHANGELOG.md", ALL, "zh").text
    assert "这一页只有英文" in text
    assert in_site("CHANGELOG.md", "[x](docs/ppo.md#options)", "zh")[0] == "[x](ppo.md#选项)"


def test_a_list_after_a_line_of_text_is_a_list():
    assert pages.rendered_as_on_code_hosts("Exact:\n- one\n- two\n") == "Exact:\n\n- one\n- two\n"
    assert pages.rendered_as_on_code_hosts("```text\na\n- b\n```\n") == "```text\na\n- b\n```\n"


def test_a_block_that_is_saved_shows_the_name_of_its_file():
    block = "<!-- file: corridor.py -->\n```python\npass\n```\n"
    assert pages.rendered_as_on_code_hosts(block) == '```python title="corridor.py"\npass\n```\n'


# The API reference


def test_every_public_name_is_on_a_page_of_the_api():
    text = "\n".join(api_pages(ROOT, "en").values())
    named = set(re.findall(r'^<a id="birl\.(\w+)"></a>$', text, re.MULTILINE))
    algorithms = {name.replace("-", "_") for name in birl.ALGORITHMS}
    assert set(birl.__all__) - {"ALGORITHMS"} == named | algorithms
    assert set(re.findall(r"^::: (birl\.algos\.\w+)$", text, re.MULTILINE)) == {
        home.partition(":")[0] for home in birl.ALGORITHMS.values()
    }


def test_a_public_name_without_a_page_is_refused(monkeypatch):
    monkeypatch.setattr(birl, "__all__", [*birl.__all__, "forgotten"])
    with pytest.raises(ApiError, match=r"birl\.forgotten is on 0 pages"):
        api_pages(ROOT, "en")


def test_the_page_of_an_algorithm_has_its_settings_with_their_comments_and_what_it_imports():
    page = api_pages(ROOT, "en")["api/algorithms/ppo.md"]
    assert "    gae_lambda: TraceDecay = 0.95  # λ\n" in page
    assert "    network: NetworkConfig = NetworkConfig(" in page
    parts = api_pages(ROOT, "en")["api/parts.md"]
    assert "    layer_norm: bool = False  # layer normalization after each hidden layer\n" in parts
    assert "__post_init__" not in page
    assert "::: birl.algos.ppo.act\n" in page  # imported
    assert "::: birl.algos.a3c.State\n" in api_pages(ROOT, "en")["api/algorithms/a3c.md"]


def test_the_index_of_the_api_has_the_first_line_of_each_docstring():
    index = api_pages(ROOT, "zh")["api/index.md"]
    assert f"| [`birl.load`](policies.md#birl.load) | {birl.load.__doc__.splitlines()[0]} |" in index
    assert f"| [`birl.ppo`](algorithms/ppo.md) | {birl.ppo.__doc__.splitlines()[0]} |" in index


# The checker of links


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="other.html#here">', None),
        ('<a href="other.html#there">', "has an anchor that is not on the page"),
        ('<a href="missing.html">', "is not in the site"),
        ('<a href="folder">', "leads to a folder"),
        ('<a href="/other.html">', "is no relative address"),
        ('<a href="../out.html">', "leads out of the site"),
        ('<a href="https://example.com/page">', None),
        ('<a href="https://">', "is no web address"),
        ('<img src="missing.png">', "is not in the site"),
        ('<script src="https://example.com/a.js"></script>', "is loaded from the network"),
        ('<link rel="stylesheet" href="https://example.com/a.css">', "is loaded from the network"),
    ],
)
def test_the_checker_finds_what_leads_nowhere(tmp_path, html, problem):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.html").write_text('<h1 id="here">')
    (tmp_path / "page.html").write_text(html)
    found = check_links.problems_of(tmp_path)
    assert [problem in line for line in found] == [True] if problem else found == []


# The build


def test_what_builds_the_site_is_installed_for_the_tests_and_has_fixed_versions():
    lines = (ROOT / "docs" / "website" / "requirements.txt").read_text().splitlines()
    tools = {line for line in lines if not line.startswith("#")}
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    fixed = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert tools <= {re.split("[>=]", requirement)[0] for requirement in dev}
    assert tools <= fixed


needs_tools = pytest.mark.skipif(
    not all(find_spec(tool) for tool in TOOLS), reason="the site's tools are not installed: pip install '.[dev]'"
)


@needs_tools
def test_formulas_become_mathml_without_a_script():
    from docs.website.maths import with_formulas, without_formulas

    page = with_formulas('<p>Value <span class="arithmatex">\\(V(s) &lt; 1\\)</span>.</p>')
    assert page.startswith('<p>Value <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert "<mi>V</mi>" in page
    index = json.dumps({"items": [{"text": "value \\[V(s)\\] here"}]})
    assert json.loads(without_formulas(index)) == {"items": [{"text": "value   here"}]}


@needs_tools
def test_a_warning_of_the_generator_ends_the_build(tmp_path):
    from docs.website.build import BuildError, run_zensical, write

    write(tmp_path / "mkdocs.yml", '{"site_name": "x", "use_directory_urls": false}')
    write(tmp_path / "docs" / "index.md", "# A\n\n[b](lost.md)\n")
    with pytest.raises(BuildError, match=r"lost\.md"):
        run_zensical(tmp_path)
    write(tmp_path / "docs" / "index.md", "# A\n\n[b](index.md)\n")
    run_zensical(tmp_path)


@needs_tools
def test_the_site_is_built_without_a_warning_or_a_dead_link(tmp_path):
    from docs.website.build import build

    site = tmp_path / "site"
    build(site)
    for language, word in {"": "advantages", "zh": "优势"}.items():
        page = (site / language / "ppo.html").read_text(encoding="utf-8")
        assert f"Birl {birl.__version__}" in page
        assert "<math" in page
        assert "\\hat" not in page
        index = json.loads((site / language / "search.json").read_text(encoding="utf-8"))
        assert any(word in item["text"] for item in index["items"])
        [script] = (site / language / "assets" / "javascripts").glob("bundle.*.js")
        assert ('placeholder:"搜索"' in script.read_text(encoding="utf-8")) == (language == "zh")
    index = (site / "zh" / "search.json").read_text(encoding="utf-8")
    sought = "超参数", "早停", "自定义网络", "自定义环境", "最优模型", "并行环境", "断点续训"
    assert [word for word in sought if word not in index] == []
    reference = (site / "api" / "train.html").read_text(encoding="utf-8")
    assert 'id="birl.train"' in reference
    assert "Train in a new run directory" in reference
    assert (site / "source" / "birl" / "algos" / "ppo.py.html").exists()
    demo = {site / "demo" / "cartpole.html", site / "zh" / "demo" / "cartpole.html"}
    assert demo <= set(site.rglob("*.html"))
    for page in set(site.rglob("*.html")) - demo:
        assert switched(page) == in_other_language(page.relative_to(site)), page


def switched(page: Path) -> Path:
    """Where the link to the other language on a built page leads, from the root of the site."""
    [address] = re.findall(
        r'<a href="([^"]+)"[^>]*class="md-header__button language"', page.read_text(encoding="utf-8")
    )
    [site] = [folder for folder in page.parents if folder.name == "site"]
    return (page.parent / address).resolve().relative_to(site.resolve())


def in_other_language(page: Path) -> Path:
    """The path of the same page in the other language."""
    return page.relative_to("zh") if page.parts[0] == "zh" else "zh" / page
