"""Sharing runs: model cards, and repositories of the Hugging Face Hub."""
