"""A language model inside this process: no key, no server, no account."""
