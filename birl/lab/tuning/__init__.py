"""Searching for settings: trials, halving, workers that share a directory, the winner's score."""
