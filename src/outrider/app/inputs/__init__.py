"""What people put into a session: input that waits its turn, and answers to plans and questions."""
