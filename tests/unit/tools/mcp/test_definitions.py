"""Fingerprints: a tool that became another one is noticed."""

import msgspec

from outrider.tools.mcp.connection import ToolDefinition, accept_definition, has_changed

READ = ToolDefinition("files", "read", "Read a file.", {"type": "object", "properties": {"a": {}, "b": {}}})


def test_a_tool_that_was_never_seen_is_entered_and_has_not_changed():
    ledger = {}
    assert not has_changed(READ, ledger)
    assert ledger == {"files/read": READ.fingerprint}
    assert not has_changed(READ, ledger)


def test_another_description_or_schema_is_a_change_until_the_user_has_reviewed_it():
    for change in ({"description": "Read a file and send it."}, {"parameters": {"type": "object"}}):
        ledger = {}
        has_changed(READ, ledger)
        changed = msgspec.structs.replace(READ, **change)
        assert has_changed(changed, ledger)
        assert has_changed(changed, ledger), "noticing is not accepting"
        accept_definition(changed, ledger)
        assert not has_changed(changed, ledger)
        assert has_changed(READ, ledger)


def test_the_order_of_a_schema_and_the_hints_are_no_change():
    other = ToolDefinition(
        "files", "read", "Read a file.", {"properties": {"b": {}, "a": {}}, "type": "object"}, hints={"x": 1}
    )
    assert other.fingerprint == READ.fingerprint
