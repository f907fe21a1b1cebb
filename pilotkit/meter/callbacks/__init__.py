"""StepMeter inside other people's trainers: one line each for transformers, Lightning and Accelerate.

    from pilotkit.meter.callbacks.transformers_trainer import TrainerMeter   # Trainer(callbacks=[TrainerMeter(...)])
    from pilotkit.meter.callbacks.lightning_trainer import LightningMeter    # Trainer(callbacks=[LightningMeter(...)])
    from pilotkit.meter.callbacks.optimizer_steps import OptimizerMeter      # Accelerate, or any loop

Nothing is imported here: each module needs the library that it is for.
"""
