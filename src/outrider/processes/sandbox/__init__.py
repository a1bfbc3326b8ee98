"""Sandboxes that confine a command with namespaces, Landlock and seccomp according to a policy."""
