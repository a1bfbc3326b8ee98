"""The embedded model as people meet it: its weights on this machine, the agent that suits it, servers close by."""
