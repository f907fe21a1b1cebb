"""What a user can configure: the schema, its composition with Hydra, every check of it. Torch-free, for both sides."""
