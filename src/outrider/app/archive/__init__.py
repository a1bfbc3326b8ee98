"""What is kept, for people to look at: sessions, traces, statistics, and the health of it all."""
