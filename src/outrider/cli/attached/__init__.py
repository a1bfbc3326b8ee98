"""What people do with the sessions of a server from this machine."""
