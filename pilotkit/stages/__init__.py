"""One file a chapter, torch-free: what a stage asks the worker to do and what it makes of the answer."""
