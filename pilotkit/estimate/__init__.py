"""Predict peak memory and step time of a training run without its hardware. Traces what `train` builds."""
