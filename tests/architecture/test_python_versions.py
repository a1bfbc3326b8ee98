"""What newer versions of Python deprecate: their warnings are errors for programs that run with `-W error`."""

import ast

from tests.architecture.repository import PACKAGE, modules_under


def test_only_the_path_of_a_database_is_a_positional_argument():
    """Deprecated since Python 3.12; a keyword in all versions."""
    wrong: list[str] = []
    for path in modules_under(PACKAGE):
        text = path.read_text(encoding="utf-8")
        if "sqlite3.connect(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sqlite3.connect" and len(node.args) > 1:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not wrong
