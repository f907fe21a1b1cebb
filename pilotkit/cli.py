"""The front door: reads the command line and turns every end into an exit code.

    0    done; a point that does not fit, and a verdict of NO-GO, are results
    1    a stage failed, or cannot run here
    2    the configuration is wrong; nothing was started
    130  Ctrl-C; 128 + N for another signal N

Never imports torch, nor anything heavy before it is needed: a login node runs this.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import pilotkit
from pilotkit.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, PilotkitError


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C asked us to end; every place that handles Ctrl-C handles it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"signal {number} ({signal.Signals(number).name})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run pilotkit with these command line arguments and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        sys.stdout.write(f"pilotkit {pilotkit.__version__}\n")
        return EXIT_OK
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        return _run(given)
    except PilotkitError as error:
        return _say(str(error), error.exit_code)
    except Ended as error:
        return _say(f"pilotkit was ended by {error}; what was recorded before is kept.", 128 + error.number)
    except KeyboardInterrupt:
        return _say("pilotkit was ended by Ctrl-C; what was recorded before is kept.", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`pilotkit ... | head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _run(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        from pilotkit.help import help_text

        sys.stdout.write(help_text())
        return EXIT_OK
    from pilotkit.launch import standby

    standby.start_for(arguments)
    try:
        from pilotkit import front

        return front.run(arguments)
    finally:
        standby.dismiss()


def _end(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


def _say(text: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    return code
