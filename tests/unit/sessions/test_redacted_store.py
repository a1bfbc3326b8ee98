"""A redacted store stores no secrets, and otherwise behaves like the wrapped store."""

from outrider.permissions.redaction.redactor import HIDDEN_SECRET, Redactor
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import InboxItem, SessionUpdate, StoredSession
from outrider.sessions.redacted_store import RedactedStore, redact_store
from outrider.sessions.store import Store
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart

SECRET = "correct horse battery"
SESSION = new_id()
# Methods that store no text of models, tools or users.
READING = {"get", "list", "delete", "clear", "load", "changes", "search", "statistics", "acquire", "renew", "release",
           "inbox", "approvals", "close"}  # fmt: skip


def test_every_way_to_write_is_watched():
    contract = {name for name in vars(Store) if not name.startswith("_")}
    watched = {name for name in vars(RedactedStore) if not name.startswith("_")} - {"covers_redactor"}
    assert watched == contract - READING


async def test_nothing_that_is_preserved_holds_a_secret():
    inner = MemoryStore()
    store = redact_store(inner, Redactor([SECRET]))
    async with store:
        await store.create(StoredSession(id=SESSION, title=f"about {SECRET}"))
        assert (await store.update(SESSION, SessionUpdate(title=f"still {SECRET}"))).title == f"still {HIDDEN_SECRET}"
        user_message = Message("user", [TextPart(f"I say {SECRET}")], time=MessageTime(1))
        user_message.join(SESSION)
        await store.append(SESSION, [user_message])
        assert user_message.get_text_content() == f"I say {SECRET}"
        item = await store.put_inbox(InboxItem(session_id=SESSION, message=Message("user", [TextPart(SECRET)])))
        assert item.message.get_text_content() == HIDDEN_SECRET
        assert (await store.fork(SESSION, title=f"fork of {SECRET}")).title == f"fork of {HIDDEN_SECRET}"
        loaded = await inner.load(SESSION)
        assert [message.get_text_content() for message in loaded.messages] == [f"I say {HIDDEN_SECRET}"]


async def test_a_draft_is_stored_without_a_possible_start_of_a_secret():
    inner = MemoryStore()
    store = redact_store(inner, Redactor([SECRET]))
    await store.create(StoredSession(id=SESSION))
    message = Message("assistant", [], time=MessageTime(1))
    message.join(SESSION)
    await store.append(SESSION, [message])
    part = TextPart("it is correct hor")
    part.adopt(message.id, SESSION)
    await store.append(SESSION, [part], draft=True)
    (stored,) = (await inner.load(SESSION)).messages
    assert stored.get_text_content() == "it is "


def test_a_store_that_hides_enough_is_not_wrapped_again():
    store = redact_store(MemoryStore(), Redactor([SECRET]))
    assert redact_store(store, Redactor()) is store
    assert redact_store(store, Redactor(["another secret value"])) is not store
