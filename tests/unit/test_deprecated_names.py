"""Public names of version 0.1 work and warn with the new name."""

from importlib import import_module

import msgspec
import pytest

import outrider
from outrider import AnswerDiffers, EventBus, EventLog, Prompt, Replay, RunResult, Session, Span, Usage
from outrider.events import ErrorEvent, Event


@pytest.mark.parametrize("name", ["EventBus", "EventStream", "get_event_bus"])
def test_the_old_module_of_the_bus(name: str):
    bus = import_module("outrider.bus")
    with pytest.warns(DeprecationWarning, match=rf"outrider\.bus\.{name} is deprecated, use outrider\.{name}") as seen:
        assert getattr(bus, name) is getattr(outrider, name)
    assert seen[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        bus.other  # noqa: B018


def test_the_old_name_of_a_compared_session_is_not_imported_with_all_names():
    with pytest.warns(
        DeprecationWarning, match=r"outrider\.Course is deprecated, use outrider\.ComparedSession"
    ) as seen:
        assert outrider.Course is outrider.ComparedSession
    assert seen[0].filename == __file__
    assert "Course" not in outrider.__all__


def test_old_methods_of_the_bus():
    bus, seen = EventBus(), list[Event]()
    with pytest.warns(DeprecationWarning, match=r"EventBus\.hears is deprecated, use EventBus\.has_listeners"):
        assert not bus.hears(ErrorEvent)
    with pytest.warns(DeprecationWarning, match=r"EventBus\.tell_through is deprecated, use EventBus\.add_transform"):
        end = bus.tell_through(lambda event: [event, event], ErrorEvent)
    bus.subscribe(ErrorEvent, seen.append)
    bus.publish(ErrorEvent(error_type="x", message="y"))
    end()
    bus.publish(ErrorEvent(error_type="x", message="y"))
    assert len(seen) == 3


def test_the_old_name_of_the_input_of_a_span():
    span = Span("add", "tool", details={"input": {"a": 1}})
    with pytest.warns(DeprecationWarning, match=r"Span\.given is deprecated, use Span\.tool_input"):
        assert span.given == {"a": 1}


def test_the_old_parameter_of_the_opening_of_a_prompt():
    prompt = Prompt()
    with pytest.warns(DeprecationWarning, match="made_of"):
        assert prompt.opening(made_of="key", write=lambda: b"first") == b"first"
    assert prompt.opening("key", lambda: b"second") == b"first"
    assert prompt.opening(inputs_key="other", write=lambda: b"third") == b"third"


@pytest.mark.parametrize("output", ["done", {"a": 1}, None])
def test_a_result_with_the_arguments_of_version_0_1(output: object):
    log, session = EventLog(), Session()
    with pytest.warns(DeprecationWarning, match=r"RunResult\(output=") as seen:
        result = RunResult(
            output=output, messages=[], event_log=log, session=session, usage=Usage(), termination_reason="aborted"
        )
    assert seen[0].filename == __file__
    assert (result.output, result.termination_reason, result.session) == (output, "aborted", session)
    assert result.event_log is log
    assert result.trace.format_tree() == result.format_trace()


def test_the_old_names_of_a_replay_and_its_differences():
    difference = AnswerDiffers("text", "one", "two")
    with pytest.warns(DeprecationWarning, match=r"AnswerDiffers\.words is deprecated, use AnswerDiffers\.describe"):
        assert difference.words() == difference.describe()
    with pytest.warns(DeprecationWarning, match=r"AnswerDiffers\.of is deprecated, use AnswerDiffers\.field_name"):
        assert difference.of == "text"
    assert msgspec.to_builtins(difference) == {"kind": "answer", "of": "text", "recorded": "one", "now": "two"}
    result = Replay(Session(), Session(), (), 2, 3)
    with pytest.warns(DeprecationWarning, match=r"Replay\.given is deprecated, use Replay\.copied_steps"):
        assert result.given == 2
    with pytest.warns(DeprecationWarning, match=r"Replay\.unplayed is deprecated, use Replay\.unused_exchanges"):
        assert result.unplayed == 3
