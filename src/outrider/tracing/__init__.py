"""Listeners: what a run did, as records, as a tree, as a page and as lines on a console."""
