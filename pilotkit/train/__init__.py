"""Build and run the training that is being planned: model, data, optimizer, parallelism, one step, checkpoint.

Called by the worker's phases and traced by `estimate`. Takes scalars and small dataclasses;
never reads the configuration.
"""
