"""What is served as files: tokens that figures name, and what was taken from others."""

import hashlib
import re
from pathlib import Path

import plotly

import flopwatch_dashboard
from flopwatch_dashboard import theme
from flopwatch_dashboard.static import ASSETS, PLOTLY, PLOTLY_PATH, our_files

ROOT = Path(flopwatch_dashboard.__file__).parent


def tokens_of(scheme: str) -> set[str]:
    css = (ASSETS / "css" / "tokens.css").read_text()
    block = css.split(f'[data-mantine-color-scheme="{scheme}"] {{')[1].split("}")[0]
    return set(re.findall(r"(--[\w-]+):", block))


def test_both_schemes_know_the_same_tokens() -> None:
    assert tokens_of("light") == tokens_of("dark")
    assert len(tokens_of("light")) > 30


def test_every_token_that_python_names_has_a_value() -> None:
    named = set()
    for path in [ROOT / "theme.py", *ROOT.rglob("figures.py"), *ROOT.rglob("mfu_panel.py")]:
        named |= set(re.findall(r"\"(--[a-z][\w-]*)\"", path.read_text()))
    assert "--accent" in named
    assert named - tokens_of("light") == set()
    assert [color for _, color in theme.RAMP] == [f"--ramp-{step}" for step in range(6)]


def test_every_token_that_a_style_sheet_uses_has_a_value() -> None:
    sheets = "".join(path.read_text() for path in (ASSETS / "css").glob("*.css"))
    defined = set(re.findall(r"(--[\w-]+):", sheets)) | {
        "--line-mask",
        "--area-mask",
        "--rows",
        "--depth",
    }
    assert set(re.findall(r"var\((--[\w-]+)", sheets)) - defined == set()


def test_the_small_plotly_is_of_the_version_inside_the_python_package() -> None:
    version = re.compile(rb"plotly\.js[^\n]{0,40} v(\d+\.\d+\.\d+)")
    whole = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours, theirs = (version.search(path.read_bytes()[:2000]) for path in (PLOTLY, whole))
    assert ours
    assert theirs
    assert ours[1] == theirs[1]


def test_what_was_taken_from_others_is_what_the_list_says() -> None:
    listed = re.findall(r"`([^`]+)` \|[^|]+\|[^|]+\| `([0-9a-f]{64})`",
                        (ROOT / "vendor" / "README.md").read_text())  # fmt: skip
    assert len(listed) == 3
    for name, digest in listed:
        content = (ROOT / "vendor" / name).resolve().read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


def test_nothing_of_ours_is_fetched_from_outside() -> None:
    files = our_files()
    ours = b"".join(file.body for path, file in files.files.items() if path != PLOTLY_PATH)
    addresses = set(re.findall(rb"https?://[\w./-]+", ours))
    assert addresses <= {b"http://www.w3.org/2000/svg"}


def test_scripts_hold_no_eval() -> None:
    for path in (ASSETS / "js").glob("*.js"):
        assert not re.search(r"\beval\(|new Function\(", path.read_text()), path.name


def test_every_icon_that_python_names_is_drawn() -> None:
    css = (ASSETS / "css" / "icons.css").read_text()
    named = {
        name
        for path in ROOT.rglob("*.py")
        for name in re.findall(r"icon[=(]\"([a-z-]+)", path.read_text())
    }
    assert named
    assert {name for name in named if f".icon-{name} " not in css} == set()
