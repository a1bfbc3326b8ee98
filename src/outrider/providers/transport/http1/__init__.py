"""HTTP/1.1 as far as talking to model APIs needs it: calls out, answers in, byte by byte as they arrive."""
