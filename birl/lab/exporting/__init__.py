"""Policies as files that act without Birl: ONNX, or a folder of NumPy code."""
