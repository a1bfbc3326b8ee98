"""Sandboxed commands whose changes are collected first, and then kept or dropped."""
