"""The only room that starts processes: the worker command, its environment, its end, and what devices there are."""
