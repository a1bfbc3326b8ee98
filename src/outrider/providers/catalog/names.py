"""Where a model is offered and what it may be called there: aliases, dates, and the forms of resellers.

Nothing is guessed: a name is taken apart only where vendors themselves put names together, and a name that is then
not listed is unknown. At an address that nobody knows (a proxy, a gateway) a name that is the vendor's own means the
vendor's model; every other name there is unknown.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

_BY_KIND = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "google": "google"}
_BY_HOST = {
    "anthropic.com": "anthropic",
    "openai.com": "openai",
    "generativelanguage.googleapis.com": "google",
    "aiplatform.googleapis.com": "google-vertex",
    "amazonaws.com": "amazon-bedrock",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "groq.com": "groq",
    "mistral.ai": "mistral",
    "x.ai": "xai",
    "deepseek.com": "deepseek",
    "openrouter.ai": "openrouter",
    "cerebras.ai": "cerebras",
    "cohere.com": "cohere",
    "deepinfra.com": "deepinfra",
    "perplexity.ai": "perplexity",
    "together.xyz": "togetherai",
    "fireworks.ai": "fireworks-ai",
    "moonshot.ai": "moonshotai",
    "z.ai": "zai",
    "githubcopilot.com": "github-copilot",
}
_VENDOR_PREFIX = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "deepseek": "deepseek",
    "mistralai": "mistral",
    "x-ai": "xai",
}
# Texts and not patterns: they are compiled with the first question, which comes after the first request.
_REGION = r"^(?:us|us-gov|eu|apac|ap|au|ca|jp|sa|global)\.(?=[a-z0-9-]+\.)"
_BEDROCK = r"^(?P<vendor>[a-z0-9-]+)\.(?P<name>[a-z].*?)(?:-v\d+)?(?::\d+)?(?::\d+k)?$"
_RELEASE = r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest|default)$"
_GOOGLE_RELEASE = r"-00\d$"
_DATED = r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$"


def offers(kind: str, model: str, base_url: str | None) -> Iterator[tuple[str, str]]:
    """Who may offer the model, and under which name; the likeliest first."""
    name = _plain(model)
    home = home_of(kind, base_url) or _BY_KIND.get(kind)
    if home is not None:
        yield from ((home, form) for form in forms(name))
    if home == "openrouter" or (home == "openai" and base_url is None):
        yield from _routed(name)
    if home in {"anthropic", "amazon-bedrock", "google-vertex"}:
        yield from _resold(name)


def home_of(kind: str, base_url: str | None) -> str | None:
    """The id of whoever answers at this address; by the kind where no address is given."""
    if not base_url:
        return _BY_KIND.get(kind)
    host = urlsplit(base_url if "//" in base_url else f"//{base_url}").hostname or ""
    for known, home in _BY_HOST.items():
        if host == known or host.endswith((f".{known}", f"-{known}")):
            return home
    return None


def forms(name: str) -> Iterator[str]:
    """The name itself, then without its release."""
    yield name
    if re.search(_RELEASE, name):
        yield re.sub(_RELEASE, "", name)
    elif name.startswith("gemini-") and re.search(_GOOGLE_RELEASE, name):
        yield re.sub(_GOOGLE_RELEASE, "", name)


def newest(name: str, listed: Iterable[str]) -> str | None:
    """The newest dated release of a name that is listed only with dates."""
    bare = re.sub(_RELEASE, "", name) if name.endswith("-latest") else name
    releases = [entry for entry in listed if entry.startswith(bare) and re.sub(_DATED, "", entry) == bare != entry]
    return max(releases, default=None)


def _plain(model: str) -> str:
    """Without the path that Google, Vertex and Bedrock put before a name."""
    for mark in ("models/", "foundation-model/", "inference-profile/"):
        model = model.rpartition(mark)[2]
    return model.lower()


def _routed(name: str) -> Iterator[tuple[str, str]]:
    """OpenRouter's vendor/model, which charges what the vendor charges."""
    vendor, slash, rest = name.partition("/")
    if slash:
        yield "openrouter", name
        if vendor in _VENDOR_PREFIX:
            yield from ((_VENDOR_PREFIX[vendor], form) for form in forms(rest))


def _resold(name: str) -> Iterator[tuple[str, str]]:
    """Anthropic's models as Bedrock (us.anthropic.NAME-v1:0) and Vertex (NAME@DATE) call them."""
    regional = re.sub(_REGION, "", name)
    if found := re.match(_BEDROCK, regional):
        yield "amazon-bedrock", name
        yield "amazon-bedrock", regional
        if found["vendor"] == "anthropic":
            yield from (("anthropic", form) for form in forms(found["name"]))
    if "@" in name:
        yield "google-vertex", name
        yield from (("anthropic", form) for form in forms(name.replace("@default", "").replace("@", "-")))
