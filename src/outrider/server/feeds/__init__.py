"""Sessions as server-sent events: everything that was kept, then what happens, to any number of clients."""
