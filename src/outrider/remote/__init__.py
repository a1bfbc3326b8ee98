"""Client for an Outrider server: an engine on another machine with the interface of a local one."""
