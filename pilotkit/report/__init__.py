"""What a person reads: terminal tables, plots and one HTML page, from records alone. Torch-free; measures nothing."""
