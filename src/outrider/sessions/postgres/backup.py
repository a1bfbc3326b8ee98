"""A copy of all tables before they change: a schema of its own, which the older version can open as a store."""

from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
LONGEST_NAME = 63  # of a schema, in Postgres


def backup_name(schema: str, version: int) -> str:
    ending = f"_v{version}_backup"
    return schema[: LONGEST_NAME - len(ending)] + ending


async def back_up(db: Connection, schema: str, version: int) -> str:
    """In the transaction that changes the tables, so that a copy that is there is a whole one; says where it is.

    Nobody writes meanwhile. Rows that are found there already are an earlier copy of this version, and stay.
    """
    copy = backup_name(schema, version)
    found = await db.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (copy,))
    if await found.fetchone():
        return copy
    tables = await _column(db, "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename", schema)
    await db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(copy)))
    for table in tables:
        await _copy(db, sql.Identifier(schema, table), sql.Identifier(copy, table))
        await _go_on_counting(db, copy, table)
    await _tie_together(db, schema, copy)
    return copy


async def _copy(db: Connection, source: sql.Identifier, target: sql.Identifier) -> None:
    await db.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(source))
    await db.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(target, source))
    await db.execute(sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE SELECT * FROM {}").format(target, source))


async def _go_on_counting(db: Connection, schema: str, table: str) -> None:
    """Keys that the server gives begin after those that were copied."""
    query = """SELECT column_name FROM information_schema.columns
        WHERE table_schema = %s AND table_name = %s AND is_identity = 'YES'"""
    for column in await _column(db, query, schema, table):
        place = sql.Identifier(schema, table)
        await db.execute(
            sql.SQL("SELECT setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 0) + 1, false) FROM {}").format(
                sql.Literal(f'"{schema}"."{table}"'), sql.Literal(column), sql.Identifier(column), place
            )
        )


async def _tie_together(db: Connection, schema: str, copy: str) -> None:
    """References between tables are not copied with them; written without a schema they mean the copies."""
    query = """SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE contype = 'f' AND connamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)"""
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
    ties = await (await db.execute(query, (schema,))).fetchall()
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(copy)))
    for table, definition in ties:
        await db.execute(f"ALTER TABLE {table} ADD {definition}".encode())
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))


async def _column(db: Connection, query: str, *values: str) -> list[str]:
    return [row[0] for row in await (await db.execute(query.encode(), values)).fetchall()]
