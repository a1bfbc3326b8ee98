"""Tasks for small models: choosing tools, answering from files, mending small bugs."""
