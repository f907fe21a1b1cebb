"""Names of the environment variables by which a driver, its workers and a user's own script find each other.

One list, as the two sides share no other module: the driver sets them and never imports a worker.
"""

RUN_DIR_VARIABLE = "PILOTKIT_RUN_DIR"
"""On every process of a run: its folder."""
DRIVER_PID_VARIABLE = "PILOTKIT_DRIVER_PID"
"""The process with which a worker ends."""
NODE_RANK_VARIABLE = "PILOTKIT_NODE_RANK"
"""Number of the node, of several; not set on one."""
METER_FILE_VARIABLE = "PILOTKIT_METER_FILE"
"""Where a script's StepMeter writes."""
TRACE_VARIABLE = "PILOTKIT_TRACE_DIR"
"""Where a script's RunTrace writes; so the next, what stage `restore` asks of the script."""
CHECKPOINTS_VARIABLE = "PILOTKIT_CHECKPOINT_DIR"
NUM_STEPS_VARIABLE = "PILOTKIT_NUM_STEPS"
SAVE_EVERY_VARIABLE = "PILOTKIT_SAVE_EVERY_STEPS"
KILL_VARIABLE = "PILOTKIT_KILL_AFTER_STEP"
