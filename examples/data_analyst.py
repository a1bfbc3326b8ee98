"""Product: an analyst over a SQLite database. It writes queries, reads their results, draws a chart and explains it.

    python examples/data_analyst.py sales.db 'Which month was best?'
    python examples/data_analyst.py                              # a demonstration

The database is opened read-only, so no query can change it; a chart is an SVG file without any library."""

import sqlite3
import sys
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from example_model import choose_model

from outrider import Agent, Limits, Tool, ToolContext, ToolFailure, run

INSTRUCTIONS = """You answer questions about a SQLite database. Read the schema first. Query only what you need, draw
one chart if it helps, and answer with the figures that you found."""
DEMO_ANSWERS = [
    {"tool": "schema"},
    {"tool": "query", "input": {"sql": "select month, sum(cents) / 100 from sales group by month order by month"}},
    {"tool": "draw_bars", "input": {"title": "Sales", "labels": ["Jan", "Feb", "Mar"], "values": [120, 340, 90]}},
    "February was best, with 340 of 550 in total.",
]


@dataclass
class Database:
    path: Path
    charts: Path
    drawn: list[Path] = field(default_factory=list)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)


@Tool(read_only=True)
def schema(context: ToolContext[Database]) -> str:
    """Return the tables and columns of the database."""
    connection = context.deps.connect()
    rows = connection.execute("select sql from sqlite_master where sql is not null").fetchall()
    connection.close()
    return "\n".join(row[0] for row in rows)


@Tool(read_only=True, timeout=20)
def query(context: ToolContext[Database], sql: str) -> str:
    """Run one SELECT and return at most 50 rows, with columns separated by tabs."""
    connection = context.deps.connect()
    try:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchmany(50)
    except sqlite3.Error as error:
        raise ToolFailure(f"SQLite: {error}") from error
    finally:
        connection.close()
    return "\n".join("\t".join(map(str, row)) for row in [names, *rows])


@Tool
def draw_bars(context: ToolContext[Database], title: str, labels: list[str], values: list[float]) -> str:
    """Draw a bar chart and return the name of its file."""
    if not values or len(labels) != len(values):
        raise ToolFailure("labels and values must have the same length, at least one")
    top = max(*values, 1e-9)
    bars = "".join(
        f'<rect x="{60 + 70 * i}" y="{220 - 180 * value / top:.0f}" width="50" height="{180 * value / top:.0f}" '
        f'fill="#4878a8"/><text x="{85 + 70 * i}" y="240" text-anchor="middle">{escape(label)}</text>'
        f'<text x="{85 + 70 * i}" y="{212 - 180 * value / top:.0f}" text-anchor="middle">{value:g}</text>'
        for i, (label, value) in enumerate(zip(labels, values, strict=True))
    )
    width = 80 + 70 * len(values)
    path = context.deps.charts / f"chart-{len(context.deps.drawn) + 1}.svg"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="260" font-family="sans-serif" font-size="12">'
        f'<text x="20" y="20" font-size="16">{escape(title)}</text>{bars}</svg>',
        encoding="utf-8",
    )
    context.deps.drawn.append(path)
    return path.name


def analyse(question: str, database: Database) -> str:
    provider, model = choose_model(DEMO_ANSWERS)
    analyst = Agent("analyst", INSTRUCTIONS, model=model, provider="model")
    result = run(
        analyst,
        question,
        tools=[schema, query, draw_bars],
        providers=[provider],
        deps=database,
        limits=Limits(turns=20, seconds=300),
    )
    return result.output


def make_demo_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table sales (month text, item text, cents integer)")
    rows = [("2027-01", "tea", 12000), ("2027-02", "tea", 20000), ("2027-02", "mug", 14000), ("2027-03", "tea", 9000)]
    connection.executemany("insert into sales values (?, ?, ?)", rows)
    connection.commit()
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        used = Database(Path(sys.argv[1]), Path.cwd())
        print(analyse(sys.argv[2], used))
    else:
        folder = Path(tempfile.mkdtemp())
        make_demo_database(folder / "sales.db")
        used = Database(folder / "sales.db", folder)
        print(analyse("Which month was best?", used))
    for chart in used.drawn:
        print("chart:", chart.name, chart.stat().st_size > 0)
