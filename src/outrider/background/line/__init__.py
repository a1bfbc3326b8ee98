"""Who is next: runs stand in one line, and each worker takes from it what it has room for.

The durable engine has queues of its own, but their limits are those of one queue, the same for every worker, and know
no users. So all runs stand in one queue of it that nobody listens to, and a worker moves the next ones into a queue
that is its own: fair between users, within the limits of the worker, of the queue and of the provider. From there on
the run is the durable engine's business as ever.
"""
