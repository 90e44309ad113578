"""The settings of Zensical for the site in one language, in the form of mkdocs.yml."""

from pathlib import Path

import birl

DESCRIPTIONS = {
    "en": "Deep reinforcement learning you can read, resume bit for bit, and trust",
    "zh": "代码可读、可逐比特恢复训练、值得信任的深度强化学习",
}
OTHER = {  # the language that a page's switch leads to: its name, code, and path from the root of this site
    "en": {"name": "中文", "code": "zh", "path": "zh/"},
    "zh": {"name": "English", "code": "en", "path": "../"},
}
STYLE = {"en": "style.css", "zh": "../style.css"}  # one for both
PALETTE = {
    "en": ("Switch to dark mode", "Switch to light mode", "Switch to the system's mode"),
    "zh": ("切换到深色", "切换到浅色", "跟随系统"),
}
MARKDOWN = [
    "admonition",
    "md_in_html",
    "tables",
    {"toc": {"permalink": True, "slugify": {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}}},
    {"pymdownx.arithmatex": {"generic": True}},
    "pymdownx.betterem",
    {
        "pymdownx.highlight": {
            "linenums_style": "pymdownx-inline",
            "line_anchors": "L",
            "pygments_lang_class": True,
        }
    },
    "pymdownx.magiclink",
    "pymdownx.superfences",
]


def settings(root: Path, nav: list[dict[str, object]], language: str) -> dict[str, object]:
    """The settings for this language; `root` is the repository, whose docstrings are read."""
    return {
        "site_name": f"Birl {birl.__version__}",
        "site_description": DESCRIPTIONS[language],
        "docs_dir": "docs",
        "site_dir": "site",
        "use_directory_urls": False,
        "nav": nav,
        "theme": {
            "name": "material",
            "custom_dir": "theme",
            "language": language,
            "font": False,
            "features": [
                *("navigation.tabs", "navigation.sections", "navigation.top"),
                *("navigation.footer", "toc.follow", "content.code.copy", "search.highlight"),
            ],
            "palette": palette(language),
        },
        "extra": {
            "homepage": "index.html",
            "alternate": True,
            "other_language": OTHER[language],
            "generator": False,
            "scope": "/",  # both languages remember one choice of light or dark
        },
        "extra_css": [STYLE[language]],
        "markdown_extensions": MARKDOWN,
        "plugins": ["search", {"mkdocstrings": mkdocstrings(root)}],
    }


def palette(language: str) -> list[dict[str, object]]:
    """The modes of the switch: as the system, light, dark."""
    to_dark, to_light, to_system = PALETTE[language]
    colours = {"primary": "indigo", "accent": "indigo"}
    return [
        {"media": "(prefers-color-scheme)", "toggle": {"icon": "lucide/sun-moon", "name": to_light}},
        {
            "media": "(prefers-color-scheme: light)",
            "scheme": "default",
            **colours,
            "toggle": {"icon": "lucide/sun", "name": to_dark},
        },
        {
            "media": "(prefers-color-scheme: dark)",
            "scheme": "slate",
            **colours,
            "toggle": {"icon": "lucide/moon", "name": to_system},
        },
    ]


def mkdocstrings(root: Path) -> dict[str, object]:
    """How the API reference is made. Docstrings are Markdown, with no sections of their own."""
    return {
        "enable_inventory": False,
        "handlers": {
            "python": {
                "paths": [str(root)],
                "options": {
                    "allow_inspection": False,
                    "docstring_style": None,
                    "filters": ["!^_"],
                    "heading_level": 2,
                    "members_order": "source",
                    "line_length": 80,
                    "separate_signature": True,
                    "show_bases": False,
                    "show_overloads": False,
                    "show_root_heading": True,
                    "show_signature_annotations": True,
                    "show_symbol_type_heading": True,
                    "show_source": True,
                },
            }
        },
    }
