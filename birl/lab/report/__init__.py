"""A report: one HTML page about runs, made of sections. It opens from disk, without a network."""
