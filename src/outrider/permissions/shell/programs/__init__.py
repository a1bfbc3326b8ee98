"""Specifications of known programs: the allow-list of options and operands under which each one only reads."""
