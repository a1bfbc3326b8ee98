"""Tasks that no prompt was tuned on; they show whether the other results generalise. Do not use them for tuning."""

from benchmarks.local_eval.choices import Choice
from benchmarks.local_eval.questions import read_questions
from benchmarks.local_eval.repairs import read_repairs
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

QUESTIONS = read_questions(held_out=True)
REPAIRS = read_repairs(held_out=True)
