"""Who may run what: the gate that calls pass, and the desk where questions wait for an answer."""
