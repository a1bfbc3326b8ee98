"""Completion for shells."""
