"""The next run depends on the order of assignments, never on a clock."""

from collections import Counter

import pytest

from outrider.background.queue import QueuedRun, QueueState, choose_runs


def ticket(number: int, user: str = "ann", **given: object) -> QueuedRun:
    fields = {"queue": "runs", "provider": "one", "priority": 100, **given}
    return QueuedRun(id=f"{user}{number}", user=user, number=number, **fields)  # pyright: ignore[reportArgumentType]


def order(tickets: list[QueuedRun], places: int, state: QueueState | None = None) -> str:
    return " ".join(chosen.id for chosen in choose_runs(tickets, places, state or QueueState()))


def test_users_take_turns_however_many_runs_one_has_submitted():
    many = [ticket(number) for number in range(1000)]
    few = [ticket(2000 + number, user) for number in range(3) for user in ("bob", "cat")]
    assert order(many + few, 9) == "ann0 bob2000 cat2000 ann1 bob2001 cat2001 ann2 bob2002 cat2002"


def test_with_one_place_at_a_time_users_take_turns_too():
    waiting = [ticket(number) for number in range(1000)] + [ticket(2000 + n, "bob") for n in range(3)]
    state, started = QueueState(), list[str]()
    for turn in range(8):
        (chosen,) = choose_runs(waiting, 1, state)
        waiting.remove(chosen)
        state.served = {**state.served, chosen.user_share: turn + 1}
        started.append(chosen.user)
    assert started == ["ann", "bob"] * 3 + ["ann", "ann"]


def test_who_has_the_fewest_running_is_next():
    state = QueueState(running=Counter({("runs", "ann"): 2}), served={("runs", "ann"): 1, ("runs", "bob"): 9})
    assert order([ticket(1), ticket(2), ticket(3, "bob"), ticket(4, "bob")], 3, state) == "bob3 bob4 ann1"


def test_priority_applies_among_the_runs_of_one_user_only():
    urgent = [ticket(number, priority=1) for number in range(5, 9)]
    assert order([ticket(1), *urgent, ticket(9, "bob")], 4) == "ann5 bob9 ann6 ann7"


@pytest.mark.parametrize("group", [("queue", "runs"), ("provider", "one")])
def test_no_more_are_chosen_than_a_group_has_room_for(group: tuple[str, str]):
    assert order([ticket(1), ticket(2), ticket(3, "bob")], 3, QueueState(room={group: 1})) == "ann1"
    assert order([ticket(1), ticket(2)], 2, QueueState(room={group: -1})) == ""


def test_no_run_waits_for_one_whose_provider_is_busy():
    tickets = [ticket(1), ticket(2, provider="two"), ticket(3), ticket(4, provider="two")]
    assert order(tickets, 4, QueueState(room={("provider", "one"): 0})) == "ann2 ann4"


def test_queues_do_not_take_from_each_other():
    tickets = [ticket(1, queue="night"), ticket(2)]
    assert order(tickets, 2, QueueState(room={("queue", "night"): 0})) == "ann2"
