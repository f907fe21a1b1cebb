"""RunTrace inside the trainers that people use; each file needs its trainer and nothing else of it."""
