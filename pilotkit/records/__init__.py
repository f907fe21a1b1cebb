"""What a run leaves behind: the record, its folder, and the search over both. Torch-free; used by driver and worker."""
