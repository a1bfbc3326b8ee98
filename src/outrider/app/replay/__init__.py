"""Sessions run again: as they were, offline, or otherwise from some step on; and two of them side by side."""
