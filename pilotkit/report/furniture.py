"""What every page carries: the template machine that escapes all text, the style, the script of the tables, a policy.

Called by the three pages of this room. Reads our own files and nothing of the user's.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pilotkit.report.words import translator


def page_environment(language: str = "en") -> Environment:
    """Everything is escaped: run names, tracebacks and notes may hold anything."""
    environment = Environment(
        loader=PackageLoader("pilotkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["t"] = translator(language)
    return environment


def page_furniture() -> dict[str, Markup]:
    """`style`, `script` and `policy` of a page.

    The policy (Content Security Policy level 3, W3C) lets the browser fetch nothing and run this one script, so that
    text which a user wrote stays text even where it should slip through.
    """
    script = _template("tables.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    texts = {"style": _template("style.css"), "script": script, "policy": policy}
    return {name: Markup(text) for name, text in texts.items()}  # noqa: S704 - our own files


def _template(name: str) -> str:
    return resources.files("pilotkit.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
