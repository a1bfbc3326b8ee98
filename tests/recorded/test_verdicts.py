"""The simulator accepts and rejects the requests that the vendors accepted and rejected."""

from pathlib import Path
from typing import Any

import pytest

from outrider.testing.simulator import SimulatedRequest, find_request_error
from outrider.testing.simulator_answers import SIMULATED_APIS, ApiKind
from tests.recorded.exchanges import corpus

KINDS: dict[str, ApiKind] = {
    "anthropic-messages": "anthropic",
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
    "gemini": "google",
}
# What no rule can decide: keys are removed from recordings, links are not fetched, long texts are placeholders.
UNDECIDABLE = ("API key not valid", "Error while downloading", "Cannot fetch content", "<MASSIVE_TEXT>")


def recorded_request(exchange: dict[str, Any], kind: ApiKind) -> SimulatedRequest:
    body = exchange["request"]["body"]
    model = body.get("model") or exchange["request"]["path"].partition("/models/")[2].partition(":")[0]
    return SimulatedRequest(kind, model, body)


@pytest.mark.parametrize("api", KINDS)
def test_the_simulator_agrees_with_the_verdicts_of_the_vendor(api: str, shared_dir: Path, record_property: Any):
    recordings, kind = corpus(shared_dir), KINDS[api]
    judged, rejected, wrong = 0, 0, list[str]()
    for found in recordings.select(api=api):
        exchange = recordings.get(found["id"])
        status = exchange["response"]["status"]
        if exchange["request"]["body"] is None or status not in (200, 400, 404):
            continue
        if status != 200 and any(text in str(exchange) for text in UNDECIDABLE):
            continue
        error = find_request_error(SIMULATED_APIS[kind], recorded_request(exchange, kind))
        judged += 1
        rejected += status != 200
        if (error is None) != (status == 200) or (error is not None and status == 404 and error.status != 404):
            wrong.append(f"{found['id']}: {status}, but {error}")
    share = 1 - len(wrong) / judged
    record_property("figures", f"{api}: {judged} verdicts, {rejected} rejections, agreement {share:.2%}")
    assert judged > 800
    assert rejected >= 5
    assert share >= 0.99, wrong


OTHERS: dict[str, ApiKind] = {
    "openai-compatible": "openai",
    "openai-responses-compatible": "openai-responses",
    "anthropic-compatible": "anthropic",
}


@pytest.mark.parametrize("api", OTHERS)
def test_requests_that_other_vendors_with_these_apis_accepted_are_accepted(api: str, shared_dir: Path):
    recordings, kind = corpus(shared_dir), OTHERS[api]
    accepted, wrong = 0, list[str]()
    for found in recordings.select(api=api):
        exchange = recordings.get(found["id"])
        if exchange["request"]["body"] is None or exchange["response"]["status"] != 200:
            continue
        is_deployment = "/deployments/" in exchange["request"]["path"]
        error = find_request_error(SIMULATED_APIS[kind], recorded_request(exchange, kind), any_model=is_deployment)
        accepted += 1
        wrong += [f"{found['id']}: {error}"] if error else []
    assert accepted >= 10
    assert len(wrong) <= accepted * 0.02, wrong
