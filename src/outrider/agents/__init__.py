"""Agents at work: the turn, its steps and calls, their limits, and how agents call each other."""
