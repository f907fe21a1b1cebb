"""`python -m pilotkit`: the same front door as the `pilotkit` command."""

from pilotkit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
