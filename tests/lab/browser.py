"""The system's Chromium, driven by playwright, with what a page complains about kept."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

RECORD_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
"""A script that keeps what breaks the Content-Security-Policy of a page."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium with a new profile."""
    executable = shutil.which("chromium")
    assert executable, "chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def complaints(page: Page) -> list[str]:
    """A list that fills with the errors that this page logs or throws from now on."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text)
            if message.type == "error" else None)  # fmt: skip
    page.on("pageerror", lambda error: found.append(str(error)))
    return found
