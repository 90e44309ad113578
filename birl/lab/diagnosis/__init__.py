"""The parts of `birl diagnose`: rules as data, their evidence, the text and the picture."""
