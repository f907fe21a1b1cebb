"""The system's Chromium, driven by Playwright: one browser a module, a fresh context a page."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

SAMPLE = Path(__file__).parents[1] / "unit" / "report" / "sample.py"


@dataclass
class Watched:
    """A page and everything that it should not have: words on the console, errors, dialogs, requests."""

    page: Page
    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def sample() -> dict[str, Any]:
    return runpy.run_path(str(SAMPLE))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"no Chromium: install one of {', '.join(names)}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


Visit = Callable[..., Watched]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(path, width=390, scheme="dark")` opens a file and listens from the first moment on."""
    contexts = []

    def open_page(path: Path, *, width: int = 1200, scheme: Any = "light") -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        watched = Watched(page)
        page.on("console", lambda message: watched.told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: watched.told.append(str(error)))

        def dismiss(dialog: Any) -> None:
            watched.told.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.on("request", lambda request: watched.asked.append(request.url))
        page.goto(path.as_uri())
        watched.asked.remove(path.as_uri())
        return watched

    yield open_page
    for context in contexts:
        context.close()
