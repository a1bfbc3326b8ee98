"""Models, reached over the wire or inside the process, behind one contract."""
