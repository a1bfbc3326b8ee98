"""Sessions: transcripts that survive."""
