"""Tasks that no prompt was tuned on; they show whether the other results generalise. Do not use them for tuning."""

from benchmarks.local_eval.choices import Choice
from benchmarks.local_eval.questions import Question
from benchmarks.local_eval.repairs import repair
from benchmarks.local_eval.station import STATION

ALARM = ("read", {"file_path": "station/alarm.py"}, STATION["station/alarm.py"])
PROJECT = ("read", {"file_path": "pyproject.toml"}, STATION["pyproject.toml"])
RAISED = (
    "write",
    {"file_path": "station/alarm.py", "content": STATION["station/alarm.py"].replace("35", "40")},
    "Overwrote station/alarm.py (9 lines).",
)

CHOICES = (
    # Looking around and reading.
    Choice("What does this folder contain?", "list"),
    Choice("Which files are in station/?", "list", {"path": "station"}),
    Choice("Open pyproject.toml.", "read", {"file_path": "^pyproject.toml$"}),
    Choice("Summarise docs/install.md for me.", "read", {"file_path": "^docs/install.md$"}),
    Choice("How does the alarm decide?", "read", {"file_path": "^station/alarm.py$"}),
    Choice("What is wrong with to_knots in station/convert.py?", "read", {"file_path": "^station/convert.py$"}),
    Choice("Raise LIMIT in station/alarm.py to 40.", "read", {"file_path": "^station/alarm.py$"}),
    # Searching.
    Choice("Where is the class Sensor used?", "grep", {"pattern": "Sensor"}),
    Choice("Find every FIXME.", "grep", {"pattern": "FIXME"}),
    Choice("Which file mentions lightning?", "grep", {"pattern": "lightning"}),
    # Running.
    Choice("Please run pytest.", "shell", {"command": "pytest"}),
    Choice("Show me the last three git commits.", "shell", {"command": "git log"}),
    Choice("How much disk space is free?", "shell", {"command": r"\bdf\b"}),
    # Writing.
    Choice(
        "Create a file LICENSE.txt with the text: MIT", "write", {"file_path": "^LICENSE.txt$", "content": r"^MIT\s*$"}
    ),
    Choice(
        "Write a script clock.py that prints the current time.",
        "write",
        {"file_path": "^clock.py$", "content": "(?s)time.*print"},
    ),
    Choice(
        "Raise LIMIT in station/alarm.py to 40.",
        "write",
        {"file_path": "^station/alarm.py$", "content": "(?s)import Sensor.*LIMIT = 40.*def is_alarm"},
        before=(ALARM,),
    ),
    # Answering, and continuing after a step.
    Choice("Good morning!", "answer"),
    Choice("What does HTTP stand for?", "answer", {"text": "Hypertext Transfer Protocol"}),
    Choice("Which version does this project have?", "answer", {"text": r"0\.4\.2"}, before=(PROJECT,)),
    Choice("Raise LIMIT to 40 and run the tests.", "shell", {"command": "pytest|unittest"}, before=(ALARM, RAISED)),
)

QUESTIONS = (
    Question("Who wrote the weather station? See the README.", "Tomas Lind"),
    Question("Above which temperature is there an alarm? Look into station/alarm.py.", r"\b35\b"),
    Question("How often is a sensor asked before it counts as silent? It is in sensors.py.", r"\b(3|three)\b"),
    Question("What was the low of May 3 in data/may.csv?", r"\b11\b"),
    Question("Which licence does this project have?", r"\bMIT\b"),
)

REPAIRS = (
    repair(
        "clamp",
        "clamp(15, 0, 10) in clamp.py gives 0, but it should give 10. Mend it and run the test.",
        """\
        def clamp(value, low, high):
            return min(low, max(value, high))
        """,
        """\
        from clamp import clamp


        def test_clamp():
            assert clamp(15, 0, 10) == 10
            assert clamp(-3, 0, 10) == 0
            assert clamp(5, 0, 10) == 5
        """,
    ),
    repair(
        "palindrome",
        "is_palindrome('Anna') in palindrome.py returns False. Upper and lower case should not matter. Fix it.",
        """\
        def is_palindrome(text):
            return text == text[::-1]
        """,
        """\
        from palindrome import is_palindrome


        def test_case_does_not_matter():
            assert is_palindrome("Anna")
            assert is_palindrome("level")
            assert not is_palindrome("Hanna")
        """,
    ),
    repair(
        "tail",
        "tail(items, 2) in tail.py should return the last two items, but returns only one. Fix it.",
        """\
        def tail(items, count):
            return items[-count + 1 :]
        """,
        """\
        from tail import tail


        def test_tail():
            assert tail([1, 2, 3, 4], 2) == [3, 4]
            assert tail([1, 2, 3, 4], 3) == [2, 3, 4]
        """,
    ),
    repair(
        "invoice",
        "total in invoice.py forgets the quantity: each line costs its price times its quantity. Mend it and run the "
        "test.",
        """\
        class Invoice:
            def __init__(self):
                self.lines = []

            def add(self, name, price, quantity=1):
                self.lines.append((name, price, quantity))

            def total(self):
                return sum(price for name, price, quantity in self.lines)
        """,
        """\
        from invoice import Invoice


        def test_total():
            invoice = Invoice()
            invoice.add("tea", 4, 3)
            invoice.add("cup", 5)
            assert invoice.total() == 17
        """,
    ),
    repair(
        "countdown",
        "The test in test_countdown.py fails. Find the bug in countdown.py and mend it.",
        """\
        def countdown(start):
            numbers = []
            while start > 0:
                numbers.append(start)
                start -= 1
            return numbers
        """,
        """\
        from countdown import countdown


        def test_it_ends_at_zero():
            assert countdown(3) == [3, 2, 1, 0]
            assert countdown(0) == [0]
        """,
    ),
    repair(
        "unique",
        "unique in unique.py loses the order of the items. The first of each should stay, in the order in which they "
        "come. Fix it.",
        """\
        def unique(items):
            return list(set(items))
        """,
        """\
        from unique import unique


        def test_order_stays():
            assert unique(["pear", "fig", "pear", "apple", "fig"]) == ["pear", "fig", "apple"]
            assert unique([3, 1, 3, 2]) == [3, 1, 2]
        """,
    ),
)
