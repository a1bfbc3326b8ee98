"""Listeners that record a run: event log, span tree, HTML timeline, console lines, OpenTelemetry."""
