"""Who is let in: addresses, the token, and what every request must look like before a route sees it."""
