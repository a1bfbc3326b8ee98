"""Agents of other Outrider servers, asked like models: what they are sent, and how what they answer is read."""
