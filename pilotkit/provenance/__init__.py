"""Exactly what is being run: code, packages, container, model and data, and one lock over them. Torch-free."""
