"""The torch side's entry: fresh processes that receive a run directory and a phase name."""
