"""Secrets among the options: found before anything is written, as every option goes into records, page and lock.

Called by `pilotkit.config.overrides` for what was typed and by `pilotkit.config.load` for what files say. Recognises
by name (`token`, `hf_token`, `password`, `api_key`) and by the shape of the value (keys of well-known services, a
password in an address, a signed address); a secret that looks like any other word is not seen. The value is in no
message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pilotkit.errors import Problem

HIDDEN = "***"
# Not `pad_token` or `eos_token`, which are words of a vocabulary.
_NAME = re.compile(
    r"(?:^|_)(?:passw(?:or)?d|passphrase|secret|credentials?|(?:api|secret|private|access)_?key)$"
    r"|^(?:(?:use_)?auth|hf|hub|access|api|bearer|refresh|session|github|gitlab|wandb|aws_session)_token$|^token$",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}|\bgh[oprsu]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}|\bsk-[\w-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s:@]+@"
    r"|\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)=[^\s$]"  # a line of a shell, as in cluster.setup
    r"|[?&](?:X-Amz-Signature|sig|signature|access_token|token)=[^&\s]+",
)
_FLAG = re.compile(r"--?([\w-]+)(?:=(.*))?", re.DOTALL)


def find_secrets(key: str, value: Any) -> list[Problem]:
    """One problem for each secret below `key`. `value` is plain data; of a list, `--token x` and `--token=x` count."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in find_secrets(f"{key}.{name}" if key else name, item)]
    if isinstance(value, list | tuple):
        return _in_arguments(key, value)
    if not isinstance(value, str) or not value:
        return []
    is_secret = _NAME.search(key.rpartition(".")[2]) or _VALUE.search(value)
    return [_problem(key)] if is_secret else []


def _in_arguments(key: str, items: Any) -> list[Problem]:
    found, expects_secret = [], False
    for item in items:
        if not isinstance(item, str):
            found += find_secrets(key, item)
            expects_secret = False
            continue
        flag = _FLAG.fullmatch(item)
        name, given = flag.groups() if flag else ("", None)
        is_named = _NAME.search(name.replace("-", "_")) is not None
        is_given = (is_named and given) or (expects_secret and not flag)
        found += [_problem(key)] if is_given or _VALUE.search(item) else []
        expects_secret = is_named and given is None
    return found


def _problem(key: str) -> Problem:
    return Problem(
        key,
        HIDDEN,
        "nothing secret: every option is written into records, page and lock",
        "export it (HF_TOKEN, AWS_SECRET_ACCESS_KEY, ...): processes and jobs inherit the environment",
    )
