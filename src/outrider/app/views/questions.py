"""Questions to the user as a screen shows them: calls that wait for an approval, and what a model asks."""

from outrider.app.inputs.questions import AskedQuestion, OpenQuestions
from outrider.sessions.records import Approval, ApprovalScope
from outrider.tools.builtin.question import Ask, Question
from outrider.tools.context import ToolContext

__all__ = ["Approval", "ApprovalScope", "Ask", "AskedQuestion", "OpenQuestions", "Question", "ToolContext"]
