"""Files as tools see them: found inside the workspace, read in any encoding, changed whole or not at all."""
