"""What was allowed for longer than once: seen, and taken back."""

from outrider.app.archive.archive import Approval
from outrider.app.views.sessions import archive_of
from outrider.server.endpoint import Asked, Endpoint, Nothing


async def list_answers(asked: Asked[Nothing, Nothing]) -> list[Approval]:
    return list(await archive_of(asked.engine).answers())


async def revoke_answer(asked: Asked[Nothing, Nothing]) -> None:
    await asked.engine.desk.revoke(asked.path["approval_id"])


RIGHTS = (
    Endpoint(method="GET", path="/api/answers", name="list_answers", summary="Answers that hold for longer than once",
             answer=list_answers, gives=list[Approval]),
    Endpoint(method="DELETE", path="/api/answers/{approval_id}", name="revoke_answer",
             summary="Take back an answer: it is asked again", answer=revoke_answer, status=204),
)  # fmt: skip
