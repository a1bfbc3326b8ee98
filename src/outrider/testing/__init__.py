"""Pytest plugin for programs that use Outrider: records provider traffic and replays it."""
