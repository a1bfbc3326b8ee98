"""Every conversation gets its turn."""

import threading

from outrider.providers.local.model_pool import FairQueue


def test_a_conversation_that_asks_for_much_does_not_hold_up_another():
    queue: FairQueue[str] = FairQueue()
    for job in ("a1", "a2", "a3"):
        queue.put("a", job)
    queue.put("b", "b1")
    assert [queue.take() for _ in range(4)] == ["a1", "b1", "a2", "a3"]


def test_a_job_that_was_given_up_is_not_dequeued():
    queue: FairQueue[str] = FairQueue()
    queue.put("a", "a1")
    queue.put("b", "b1")
    queue.discard("a", "a1")
    queue.discard("a", "a1")
    assert queue.take() == "b1"


def test_a_full_queue_takes_no_more():
    queue: FairQueue[str] = FairQueue(max_jobs=2)
    assert [queue.put("a", str(number)) for number in range(3)] == [True, True, False]


def test_closing_wakes_who_waits_and_gives_back_what_waited():
    queue: FairQueue[str] = FairQueue()
    dequeued: list[str | None] = []
    waiting = threading.Thread(target=lambda: dequeued.append(queue.take()))
    waiting.start()
    assert queue.close() == []
    waiting.join(30)
    assert dequeued == [None]
    assert not queue.put("a", "a1")
