"""The worker of one machine, which starts by itself when a run is submitted and ends itself when nothing is left."""
