"""The cause in the log of a program that is not ours."""

from __future__ import annotations

import pytest

from pilotkit.launch.last_words import find_last_words

STACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()"]
REPORT = [
    "E1202 06:50:22.406000 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)",
    "Traceback (most recent call last):",
    '  File "run.py", line 1019, in run',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 1 (local_rank: 1)",
]


def _on(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


@pytest.mark.parametrize(
    ("lines", "exception", "rank"),
    [
        ([*STACK, "KeyError: 'loss'"], "KeyError: 'loss'", None),
        ([*STACK, "AssertionError", *REPORT], "AssertionError", None),
        # Rank 0 speaks first, and only because its neighbour had gone.
        (
            [*_on(0, *STACK, "RuntimeError: peer closed"), *_on(1, *STACK, "my.own.Fault: bad row"), *REPORT],
            "my.own.Fault: bad row",
            1,
        ),
        (
            [*STACK, "ValueError: first", "", "During handling of the above exception, another exception occurred:", "",
             *STACK, "TypeError: last", "trailing words"],
            "TypeError: last",
            None,
        ),
        (["a warning", *_on(3, *STACK, "OSError: [Errno 28] No space left on device")],
         "OSError: [Errno 28] No space left on device", 3),
    ],
)  # fmt: skip
def test_the_exception_and_its_rank(lines: list[str], exception: str, rank: int | None) -> None:
    found = find_last_words("\n".join(lines))
    assert found is not None
    assert (found.exception, found.rank) == (exception, rank)
    assert found.traceback.startswith("Traceback")
    assert found.traceback.endswith(exception)


@pytest.mark.parametrize("log", ["", "done", "\n".join(REPORT), "Traceback (most recent call last):"])
def test_nothing_was_said(log: str) -> None:
    assert find_last_words(log) is None
