"""Birl."""
