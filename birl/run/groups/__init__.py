"""Groups of runs: the seeds of one Config, or of every combination of swept settings."""
