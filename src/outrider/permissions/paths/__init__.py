"""Where paths lead, which of them are protected, and how they are opened so that this cannot change in between."""
