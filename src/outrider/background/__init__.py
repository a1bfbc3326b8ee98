"""Background runs: durable jobs that continue after the terminal or the worker process that started them exits.

A run is a session and a DBOS workflow with the same id. Three parts share the work:

session journal   Stores every model step and tool call before it takes effect. A call that a crash interrupted ends as
"interrupted" and is not retried unless its tool declares that it may be. The lease token rejects writes of a worker
that was paused and has lost the session. run queue         Separate tables. Decide which run starts next (users take
turns within the limits of workers, queues and providers) and which worker owns it. DBOS              Stores each run's
input, status and result, delays runs, and starts a run in its worker. Only its public API is used; it accepts the
result of the latest start only.

A workflow therefore has no steps to replay. The worker that receives it takes over the session's lease and continues
the session; a second execution finds nothing left to do. Each worker increments a heartbeat counter in a separate
table. The other workers treat a counter that stops changing as a dead worker, measured with their own monotonic clock
because clocks of machines differ, and put its runs back into the queue. A run that waits for an approval is released by
its worker; the answer, from any process, puts it back into the queue.
"""
