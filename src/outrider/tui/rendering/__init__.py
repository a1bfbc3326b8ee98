"""Rendering of transcript entries: functions that return lines of styled text for a width and a palette."""
