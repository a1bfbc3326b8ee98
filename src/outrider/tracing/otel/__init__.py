"""What happens on a bus, as OpenTelemetry spans and metrics."""
