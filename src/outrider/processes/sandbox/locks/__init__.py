"""Locks on one process: the filter of system calls, rights to files, limits; and the warden, who closes them."""
