"""What not every server has besides its engine and its feeds."""

from collections.abc import Sequence

import msgspec
from starlette.routing import BaseRoute

from outrider.app.views.questions import OpenQuestions
from outrider.server.background import Background


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """`background` are its runs, `questions` those of its models, `routes` are such that are not the API's."""

    background: Background | None = None
    questions: OpenQuestions | None = None
    routes: Sequence[BaseRoute] = ()
