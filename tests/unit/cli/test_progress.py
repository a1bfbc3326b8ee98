"""What is told of a call while it runs."""

from outrider.cli.run.progress import telling


def test_of_an_input_that_is_told_first_which_people_look_for():
    assert telling({"timeout": 5, "command": "make test"}) == "make test"
    assert telling({"todos": [{"content": "a"}, {"content": "b"}], "limit": 3}) == "2 todos, limit=3"
    assert telling({}) == ""
