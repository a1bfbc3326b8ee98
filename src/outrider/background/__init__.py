"""Runs that outlive the terminal and the machine: submitted once, carried to their end by whichever worker is alive.

A run is a session and a workflow of the durable engine (DBOS) with the same id. They share the work:

    the session's journal    every model step and every call is kept before it counts; a call that was cut off is ended
                             as interrupted and never run again, unless its tool says that it may; the lease's token
                             keeps a paused worker from writing
    the line                 who is next: users take turns, within the limits of workers, queues and providers
    the durable engine       which runs there are and who has each: delays, one owner, one end per run

So a workflow has nothing to replay. Whoever is given it takes the session over and lets it go on; done twice, it finds
nothing left to do. Workers count beats in a table of our own: a count that stands still is a dead worker, by the
watcher's own clock and nobody else's, and its runs go back to their queues. A run that waits for an approval is given
up by its worker altogether; the answer, wherever it is given, puts it back into its queue.
"""
