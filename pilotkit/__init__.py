"""pilotkit: evidence before you reserve GPUs."""

__version__ = "0.1.0"
