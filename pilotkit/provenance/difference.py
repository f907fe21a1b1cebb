"""The code that runs, as content: a digest of the commit's files, and the text of what was not committed.

Called by the stage `lock` and by its gate. A lock that lies in the repository it describes would change with its own
commit, so files are compared by content and never by the name of the commit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from pilotkit.provenance.git import GitError, ask_git, run_git, skipped_names, top_of

MAX_DIFFERENCE_BYTES = 1 << 20
# An untracked file may be anything, a file of passwords too: only what is code is shown, the others by name.
_SHOWN_SUFFIXES = (".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hip")


def read_tree(folder: Path, *, exclude: Sequence[Path] = ()) -> str | None:
    """SHA-256 over names, modes and contents of the commit's files without `exclude`; None when git has no answer.

    Two commits with the same files have the same digest. Submodules count by their commit.
    """
    try:
        top = top_of(folder)
        listing = ask_git(top, "ls-tree", "-r", "-z", "--full-tree", "HEAD")
    except GitError:
        return None
    skipped_files, _ = skipped_names(top, folder=folder, exclude=exclude)
    running = hashlib.sha256()
    for entry in listing.split(b"\0"):
        if os.fsdecode(entry.partition(b"\t")[2]) not in skipped_files:
            running.update(entry + b"\0")
    return running.hexdigest()


def read_difference(folder: Path, *, untracked: Sequence[str], exclude: Sequence[Path] = ()) -> str:
    """What `git diff` says against the commit, then untracked code; at most 1 MiB, and empty without a repository.

    `untracked` are names relative to the top of the repository. A text that is cut says so in its last line.
    """
    try:
        top = top_of(folder)
        skipped_files, _ = skipped_names(top, folder=folder, exclude=exclude)
        without = [f":(exclude,top,literal){name}" for name in skipped_files]
        plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
        # A submodule's own text: without the option git says no more than that it is dirty.
        text = ask_git(top, "diff", *plain, "--submodule=diff", "--ignore-submodules=none", "HEAD", "--", ".", *without)
        for name in untracked:
            if name.endswith(_SHOWN_SUFFIXES):
                text += run_git(top, "diff", "--no-index", *plain, "--", os.devnull, name).stdout
            else:
                text += f"untracked, not shown: {name}\n".encode()
    except GitError:
        return ""
    cut = f"\ncut here, {len(text)} bytes in all\n" if len(text) > MAX_DIFFERENCE_BYTES else ""
    return text[:MAX_DIFFERENCE_BYTES].decode("utf-8", "replace") + cut
