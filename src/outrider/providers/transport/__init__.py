"""Requests to model APIs: exchanges, retries and rate limits on top of `outrider.http`."""
