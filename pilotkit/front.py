"""Between the command line and a stage: our own check of what was typed, then Hydra.

Hydra's way of ending (a traceback, or `sys.exit` in the middle of a sweep) is not ours: it is asked to let exceptions
through, and `pilotkit.cli` tells them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pilotkit.config.overrides import check_overrides, with_plus
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.errors import EXIT_OK, ConfigError, OutputError, PilotkitError, Problem, is_refusal_of_disk


class CompositionError(PilotkitError):
    """Hydra could not compose, for a reason that our own check does not know."""

    exit_code = 2


class FollowSweep(Callback):
    """Remembers where a sweep's points are, so that the end of it can be told from the disk."""

    folder: Path | None = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        FollowSweep.folder = Path(config.hydra.sweep.dir).absolute()


def run(arguments: list[str]) -> int:
    """Check, compose, run; returns the exit code of a sweep, and raises what a single run ends with."""
    register_schema()
    FollowSweep.folder = None
    # Intermixed: flags may stand between overrides, which Hydra's own reading of the line does not take.
    parsed = get_args_parser().parse_intermixed_args(arguments)
    _check(parsed)
    os.environ["HYDRA_FULL_ERROR"] = "1"
    flags = [argument for argument in arguments if argument not in parsed.overrides]
    sys.argv[1:] = [*flags, *with_plus(parsed.overrides)]
    if parsed.multirun:
        from pilotkit.launch.hydra_launchers import use_our_launchers

        use_our_launchers()
    ended: list[PilotkitError] = []
    told: list[int] = []

    def run_here(config: DictConfig) -> None:
        # Hydra prints a line of its own about an exception that passes through it.
        try:
            told.append((task(config) or {}).get("exit_code", EXIT_OK))
        except PilotkitError as error:
            ended.append(error)

    try:
        main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=CONFIG_NAME)
        with _composed_once(parsed):
            main(task if parsed.multirun else run_here)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # ValueError is what Hydra's own argument checks raise; ours never reach this place as one.
        raise CompositionError(f"The configuration cannot be composed; nothing was started.\n{error}") from error
    except OSError as error:
        if not (parsed.multirun and is_refusal_of_disk(error)):
            raise
        raise OutputError(
            f"A file of the sweep cannot be written or read: {error.strerror} "
            f"({error.filename or FollowSweep.folder}); "
            "another folder for results is output_dir=..."
        ) from error
    finally:
        code = _tell_sweep()
    if ended:
        raise ended[0]
    return max([code, *told])


@contextlib.contextmanager
def _composed_once(parsed: argparse.Namespace) -> Iterator[None]:
    """Keep Hydra from composing everything twice.

    It does so only to learn `hydra.mode`, which no option of ours sets: nothing but the flag -m chooses between one
    run and several. Where the user brings a configuration or speaks of the mode, Hydra has its way.
    """
    own = parsed.config_dir or parsed.config_path or parsed.config_name
    if own or any("hydra.mode" in override for override in parsed.overrides):
        yield
        return
    ask = Hydra.get_mode
    Hydra.get_mode = lambda self, config_name, overrides: None  # type: ignore[method-assign] # put back below
    try:
        yield
    finally:
        Hydra.get_mode = ask  # type: ignore[method-assign]


def task(config: DictConfig) -> Any:
    """What Hydra runs, here or in a job: two lines, since a launcher may ship it to another process."""
    from pilotkit.dispatch import dispatch

    return dispatch(config)


def _check(parsed: argparse.Namespace) -> None:
    """Raises ConfigError with all problems of the command at once."""
    if parsed.config_name or parsed.config_path:
        return  # somebody else's configuration: Hydra knows its names, we do not
    extra = [Path(parsed.config_dir)] if parsed.config_dir else []
    problems, sound = check_overrides(parsed.overrides, multirun=parsed.multirun, extra_dirs=extra)
    if problems:
        touched = [problem.key for problem in problems]
        raise ConfigError([*problems, *_problems_of_the_rest(sound, touched=touched)])
    # A job may start hours later: what has drifted already is told before anything is queued.
    if parsed.multirun and any(word.startswith(("lock.", "experiment=")) for word in sound):
        _check_submission(sound)


def _check_submission(overrides: Sequence[str]) -> None:
    """Tell what drifted from the committed lock. Raises StageRefused, in `lock.mode=check`, when something has."""
    from pilotkit.config.load import load
    from pilotkit.stages.gate import refuse_submission

    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = load(hydra.compose(CONFIG_NAME, overrides=list(overrides)), launch_dir=Path.cwd())
    except (HydraException, OmegaConfBaseException):
        return  # Hydra itself will say it, in its own words
    refuse_submission(config, launch_dir=Path.cwd())


def _problems_of_the_rest(overrides: Sequence[str], *, touched: Sequence[str]) -> list[Problem]:
    """What is wrong with the other overrides together, as far as it does not rest on those that were left out."""
    from pilotkit.config.load import load

    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            load(hydra.compose(CONFIG_NAME, overrides=with_plus(overrides)), launch_dir=Path.cwd())
    except ConfigError as error:
        return [problem for problem in error.problems if not _rests_on(problem, touched)]
    except (HydraException, OmegaConfBaseException):
        return []
    return []


def _rests_on(problem: Problem, touched: Sequence[str]) -> bool:
    names = (problem.key, *problem.factors)
    return any(name == key or name.startswith(f"{key}.") for name in names for key in touched)


def _tell_sweep() -> int:
    if FollowSweep.folder is None:
        return EXIT_OK
    from pilotkit.dispatch import tell_sweep

    return tell_sweep(FollowSweep.folder)
