"""An engine that runs in a server: reached over HTTP, followed by its events, held like one of this process."""
