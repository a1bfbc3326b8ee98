"""Sandboxed commands whose changes are collected first, and then committed or dropped."""
