"""Tasks for small models: choosing tools, answering from files, fixing small bugs."""
