"""The schema of the Postgres store, its migrations, and the backup that a migration makes."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from outrider.errors import StoreVersionError
from outrider.sessions.database_files import check_encoding
from outrider.sessions.failpoints import failpoint

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
BACKUP_BATCH_PAGES = 4096  # 32 MB of a table
MAX_IDENTIFIER_LENGTH = 63  # Postgres truncates longer identifiers


def backup_schema_name(schema: str, version: int) -> str:
    ending = f"_v{version}_backup"
    return schema[: MAX_IDENTIFIER_LENGTH - len(ending)] + ending


async def backup_tables(db: Connection, schema: str, version: int, *, batch_pages: int = BACKUP_BATCH_PAGES) -> str:
    """Copies all tables into a backup schema and returns its name.

    Runs in a separate transaction, so an existing backup is complete; a backup of the same version stays unchanged.
    The transaction reads one snapshot and copies `batch_pages` at a time: other workers read and write meanwhile.
    """
    copy = backup_schema_name(schema, version)
    await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    cursor = await db.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (copy,))
    if await cursor.fetchone():
        return copy
    tables = await _fetch_column(db, "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename", schema)
    await db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(copy)))
    for table in tables:
        await _copy_table(db, sql.Identifier(schema, table), sql.Identifier(copy, table), batch_pages)
        await _advance_identity(db, copy, table)
    await _copy_foreign_keys(db, schema, copy)
    return copy


async def _copy_table(db: Connection, source: sql.Identifier, target: sql.Identifier, batch_pages: int) -> None:
    await db.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(target, source))
    insert = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE SELECT * FROM {}").format(target, source)
    pages = await (await db.execute("SELECT pg_relation_size(%s::regclass) / 8192", (source.as_string(db),))).fetchone()
    for page in range(0, (pages[0] if pages else 0) + 1, batch_pages):
        batch = sql.SQL(" WHERE ctid >= {} AND ctid < {}").format(
            sql.Literal(f"({page},0)"), sql.Literal(f"({page + batch_pages},0)")
        )
        await db.execute(insert + batch)


async def _advance_identity(db: Connection, schema: str, table: str) -> None:
    """Sets the identity sequences of the copy to start after the copied keys."""
    query = """SELECT column_name FROM information_schema.columns
        WHERE table_schema = %s AND table_name = %s AND is_identity = 'YES'"""
    for column in await _fetch_column(db, query, schema, table):
        qualified_table = sql.Identifier(schema, table)
        await db.execute(
            sql.SQL("SELECT setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 0) + 1, false) FROM {}").format(
                sql.Literal(f'"{schema}"."{table}"'), sql.Literal(column), sql.Identifier(column), qualified_table
            )
        )


async def _copy_foreign_keys(db: Connection, schema: str, copy: str) -> None:
    """Adds the foreign keys to the copied tables, because LIKE does not copy them.

    The search_path determines whether their unqualified table names refer to the originals or to the copies.
    """
    query = """SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE contype = 'f' AND connamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)"""
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
    foreign_keys = await (await db.execute(query, (schema,))).fetchall()
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(copy)))
    for table, definition in foreign_keys:
        await db.execute(f"ALTER TABLE {table} ADD {definition}".encode())
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))


async def _fetch_column(db: Connection, query: str, *values: str) -> list[str]:
    return [row[0] for row in await (await db.execute(query.encode(), values)).fetchall()]


# `body` columns are JSON as bytea: the json types reject or normalise some strings. `words` holds the search lexemes.
_TABLES = """
CREATE TABLE sessions (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE, seq bigint NOT NULL,
    changed bigint NOT NULL, active bigint NOT NULL, created bigint NOT NULL, title text NOT NULL,
    workspace text NOT NULL, mode text NOT NULL, agent text NOT NULL, parent text, archived bigint,
    body bytea NOT NULL, token bigint NOT NULL DEFAULT 0, lease bytea, expires timestamptz, words tsvector
);
CREATE INDEX sessions_by_activity ON sessions (active, id COLLATE "C");
CREATE INDEX sessions_by_workspace ON sessions (workspace, active);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_word ON sessions USING gin (words);
CREATE TABLE messages (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session bigint NOT NULL REFERENCES sessions ON DELETE CASCADE,
    id text NOT NULL, seq bigint NOT NULL, role text NOT NULL, created bigint NOT NULL, body bytea NOT NULL,
    UNIQUE (session, id)
);
CREATE INDEX messages_in_order ON messages (session, key);
CREATE INDEX messages_by_change ON messages (session, seq);
CREATE TABLE parts (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session bigint NOT NULL REFERENCES sessions ON DELETE CASCADE,
    message bigint NOT NULL REFERENCES messages ON DELETE CASCADE, id text NOT NULL, seq bigint NOT NULL,
    draft boolean NOT NULL, blobs integer NOT NULL, tool text, outcome text, started bigint, ended bigint,
    body bytea NOT NULL, words tsvector, UNIQUE (message, id)
);
CREATE INDEX parts_by_change ON parts (session, seq);
CREATE INDEX parts_by_call ON parts (started) WHERE outcome IS NOT NULL;
CREATE INDEX parts_by_word ON parts USING gin (words);
CREATE TABLE blobs (name text PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE blob_uses (
    part bigint NOT NULL REFERENCES parts ON DELETE CASCADE, name text NOT NULL, PRIMARY KEY (part, name)
);
CREATE INDEX blob_uses_by_name ON blob_uses (name);
CREATE TABLE inbox (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session bigint NOT NULL REFERENCES sessions ON DELETE CASCADE,
    id text NOT NULL, seq bigint NOT NULL, taken boolean NOT NULL DEFAULT false, body bytea NOT NULL,
    UNIQUE (session, id)
);
CREATE TABLE approvals (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session bigint NOT NULL REFERENCES sessions ON DELETE CASCADE,
    id text NOT NULL UNIQUE, seq bigint NOT NULL, call_id text NOT NULL, fingerprint text NOT NULL,
    answer text NOT NULL, body bytea NOT NULL, UNIQUE (session, call_id, fingerprint)
)
"""

# The owner of a session and a copy of its metadata, which queries filter by.
_OWNER_COLUMNS = """
ALTER TABLE sessions ADD COLUMN owner text NOT NULL DEFAULT '', ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}';
CREATE INDEX sessions_by_owner ON sessions (owner, active) WHERE owner <> ''
"""

# Every step reads the open inbox items and approvals; the others only grow.
_OPEN_ITEM_INDEXES = """
CREATE INDEX inbox_open ON inbox (session, key) WHERE NOT taken;
CREATE INDEX approvals_open ON approvals (session, key) WHERE answer = 'open'
"""

# Entry n migrates schema version n to n + 1. Entries are only added, never changed.
MIGRATIONS = (_TABLES, _OWNER_COLUMNS, _OPEN_ITEM_INDEXES)
_LOCK = 0x4F757472


async def migrate_schema(db: Connection, schema: str, migrations: Sequence[str] = MIGRATIONS) -> str | None:
    """Migrates the tables to the newest schema in one transaction. An advisory lock serialises concurrent starts.
    `db` is not in a transaction.

    Backs up older tables first and returns the schema of the backup. Raises StoreVersionError for newer tables, and
    ConfigurationError for a database without an encoding. Workers of older versions continue while it runs and
    afterwards: migrations only add.
    """
    check_encoding(db.info.parameter_status("server_encoding"))
    async with db.transaction():
        version = await _prepare_version(db, schema, migrations)
    backup = None
    if 0 < version < len(migrations):
        async with db.transaction():
            backup = await backup_tables(db, schema, version)
    try:
        async with db.transaction():
            version = await _prepare_version(db, schema, migrations)
            await _apply_migrations(db, migrations, version)
    except BaseException:
        if backup is not None:
            await db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(backup)))
        raise
    return backup


async def is_current_schema(db: Connection, schema: str) -> bool:
    """Returns whether the tables exist in the version of this program."""
    cursor = await db.execute("SELECT to_regclass(%s)", (sql.Identifier(schema, "outrider_version").as_string(db),))
    row = await cursor.fetchone()
    return row is not None and row[0] is not None and await _schema_version(db) == len(MIGRATIONS)


async def _prepare_version(db: Connection, schema: str, migrations: Sequence[str]) -> int:
    """Returns the version of the tables, 0 for none."""
    await db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    await db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    # A pooler may give each transaction another server connection, which does not have the path of the session.
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
    await db.execute("CREATE TABLE IF NOT EXISTS outrider_version (version integer NOT NULL)")
    version = await _schema_version(db)
    if version > len(migrations):
        raise StoreVersionError(
            f"the tables in schema {schema} have version {version}; this program reads versions up to "
            f"{len(migrations)}. Update Outrider, or use another schema.",
            found=version,
            supported=len(migrations),
        )
    return version


async def _apply_migrations(db: Connection, migrations: Sequence[str], version: int) -> None:
    if version == len(migrations):
        return
    for tables in migrations[version:]:
        for statement in tables.split(";\n"):
            await db.execute(statement.encode())
        failpoint("FP-mid-migration")
    await db.execute("INSERT INTO outrider_version VALUES (%s)", (len(migrations),))


async def _schema_version(db: Connection) -> int:
    row = await (await db.execute("SELECT coalesce(max(version), 0) FROM outrider_version")).fetchone()
    return row[0] if row else 0
