"""Settings from files, environment and flags: precedence and error messages."""

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from outrider.config import file
from outrider.config.file import ConfigFile
from outrider.config.providers import DEFAULT_MODELS, NO_PROVIDER_MESSAGE
from outrider.config.settings import CommandFlags, Settings, read_settings, remember_model
from outrider.errors import ConfigurationError
from outrider.providers.catalog import ModelCatalog
from outrider.types.modes import MODES
from outrider.types.parts import Tokens

KEY = {"ANTHROPIC_API_KEY": "sk-ant-secret"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def settings(home: Path, toml: str = "", environ: dict[str, str] | None = None, **flags) -> Settings:
    if toml:
        (home / "config.toml").write_text(toml, encoding="utf-8")
    given = KEY if environ is None else environ
    return read_settings(cwd=home.parent, environ={"OUTRIDER_HOME": str(home), **given}, flags=CommandFlags(**flags))


def test_without_any_configuration_a_key_is_enough(home):
    found = settings(home)
    (agent,) = found.agents
    assert found.model == f"anthropic/{DEFAULT_MODELS['anthropic']}"
    assert (agent.name, agent.mode, found.missing, found.notices) == ("outrider", "agent", "", ())
    assert found.providers[0].api_key == "sk-ant-secret"


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("GEMINI_API_KEY", "google"),
        ("GOOGLE_API_KEY", "google"),
        ("OPENAI_BASE_URL", "openai"),
        ("ANTHROPIC_BASE_URL", "anthropic"),
        ("GOOGLE_GEMINI_BASE_URL", "google"),
    ],
)
def test_the_provider_that_the_environment_speaks_of_is_used(home, variable, provider):
    assert settings(home, environ={variable: "http://127.0.0.1:1/v1"}).model.startswith(f"{provider}/")


def test_without_a_provider_the_ways_to_get_one_are_reported(home):
    found = settings(home, environ={})
    assert (found.model, found.missing, found.providers) == ("", NO_PROVIDER_MESSAGE, ())


def test_the_default_models_are_known_to_the_catalog():
    for kind, model in DEFAULT_MODELS.items():
        assert kind == "local" or ModelCatalog().context_limit(kind, model), model


def test_a_key_is_never_printed(home):
    assert "sk-ant-secret" not in repr(settings(home))


def test_flags_go_before_environment_before_file(home):
    toml = 'model = "anthropic/from-file"\nmode = "plan"'
    assert settings(home, toml).model == "anthropic/from-file"
    assert settings(home, toml).mode == "plan"
    environ = {**KEY, "OUTRIDER_MODEL": "anthropic/from-environment", "OUTRIDER_MODE": "chat"}
    assert settings(home, toml, environ).model == "anthropic/from-environment"
    assert settings(home, toml, environ).mode == "chat"
    assert settings(home, toml, environ, model="anthropic/from-flag", mode="agent").model == "anthropic/from-flag"


def test_the_effort_of_a_flag_goes_before_environment_agent_and_file(home):
    toml = 'reasoning_effort = "low"\n[agents.outrider]\n[agents.other]\nreasoning_effort = "max"'
    assert [agent.reasoning_effort for agent in settings(home, toml).agents] == ["low", "max"]
    environ = {**KEY, "OUTRIDER_EFFORT": "high"}
    assert [agent.reasoning_effort for agent in settings(home, toml, environ).agents] == ["high", "max"]
    assert settings(home, toml, environ, effort="none").agents[0].reasoning_effort == "none"
    with pytest.raises(ConfigurationError, match="no reasoning effort is called 'hihg'; did you mean high"):
        settings(home, effort="hihg")


@pytest.mark.parametrize("name", ["MODE", "APPROVAL", "EFFORT", "MODEL"])
def test_a_mistake_in_a_variable_is_named_by_the_variable(home, name):
    with pytest.raises(ConfigurationError, match=f"--{name.lower()} or OUTRIDER_{name}: .*'yolo'"):
        settings(home, environ={**KEY, f"OUTRIDER_{name}": "yolo"})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("opus", "anthropic/claude-opus-4-7"),
        (" Opus ", "anthropic/claude-opus-4-7"),
        ("anthropic/OPUS", "anthropic/claude-opus-4-7"),
        ("chatgpt-4o-latest", "openai/chatgpt-4o-latest"),
        ("anthropic/sonnet", "anthropic/claude-sonnet-4-6"),
        ("claude-opus-4-6", "anthropic/claude-opus-4-6"),
        ("gpt", "openai/gpt-5.5"),
        ("o3", "openai/o3"),
        ("gemini-2.5-pro", "google/gemini-2.5-pro"),
    ],
)
def test_aliases_and_bare_model_names_are_resolved(home, written, expected):
    keys = {**KEY, "OPENAI_API_KEY": "k", "GEMINI_API_KEY": "k"}
    assert settings(home, "", keys, model=written).model == expected


def test_the_model_that_the_user_chose_is_remembered_until_it_cannot_be_reached(home):
    folder = settings(home).data_folder
    folder.mkdir(parents=True, exist_ok=True)
    remember_model(folder, "anthropic/claude-opus-4-7")
    assert settings(home).model == "anthropic/claude-opus-4-7"
    assert settings(home, 'model = "anthropic/from-file"').model == "anthropic/from-file"
    (home / "config.toml").unlink()
    remember_model(folder, "openai/gpt-5.4")
    assert settings(home).model.startswith("anthropic/"), "there is no key for it"


def test_the_name_openai_means_responses_at_openai_and_chat_at_other_hosts(home):
    key = {"OPENAI_API_KEY": "sk-x"}

    def kind_of(toml: str = "", **environ: str) -> str:
        found = settings(home, toml or "# nothing", {**key, **environ}, model="openai/gpt-5.4")
        return next(provider.kind for provider in found.providers if provider.name == "openai")

    assert kind_of() == "openai-responses"
    assert kind_of(OPENAI_BASE_URL="http://127.0.0.1:8080/v1") == "openai"
    assert kind_of('[providers.openai]\nbase_url = "https://gateway.example/v1"') == "openai"
    assert kind_of('[providers.openai]\nkind = "openai"') == "openai"
    forced = '[providers.openai]\nkind = "openai-responses"\nbase_url = "https://gateway.example/v1"'
    assert kind_of(forced) == "openai-responses"


def test_a_model_flag_is_meant_for_the_agent_that_starts_even_if_it_names_its_own(home):
    toml = '[agents.outrider]\nmodel = "anthropic/own"\n[agents.other]\nmodel = "anthropic/another"'
    first, other = settings(home, toml, model="anthropic/asked").agents
    assert (first.model, other.model) == ("asked", "another")


@pytest.mark.parametrize(
    ("written", "provider", "model"),
    [
        ("local", "local", "1.5b"),
        ("local/0.5b", "local", "0.5b"),
        ("local//models/some.gguf", "local", "/models/some.gguf"),
        ("anthropic", "anthropic", DEFAULT_MODELS["anthropic"]),
        ("anthropic/vendor/model", "anthropic", "vendor/model"),
    ],
)
def test_a_model_is_written_as_provider_and_name(home, written, provider, model):
    agent = settings(home, model=written).agents[0]
    assert (agent.provider, agent.model) == (provider, model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("antropic/claude", "did you mean anthropic"),
        ("claude", "write PROVIDER/MODEL"),
        ("/x", "there is no provider ''"),
    ],
)
def test_a_model_that_cannot_be_routed_is_explained(home, model, message):
    with pytest.raises(ConfigurationError, match=message):
        settings(home, model=model)


def test_a_provider_of_one_s_own_has_its_address_key_and_model(home):
    toml = '[providers.work]\nkind = "openai"\nbase_url = "https://llm.example/v1"\napi_key_env = "WORK"\nmodel = "m"'
    found = settings(home, toml, {"WORK": "w"})
    assert found.model == "work/m"
    (provider,) = found.providers
    assert (provider.kind, provider.base_url, provider.api_key) == ("openai", "https://llm.example/v1", "w")


def test_a_vendor_s_key_goes_to_no_other_address_of_the_file(home):
    toml = '[providers.mine]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"'
    mine = settings(home, toml, {"OPENAI_API_KEY": "vendor-key"}, model="mine").providers[0]
    assert mine.api_key == ""
    toml = '[providers.eu]\nkind = "openai"\nbase_url = "https://eu.api.openai.com/v1"\nmodel = "m"'
    assert settings(home, toml, {"OPENAI_API_KEY": "vendor-key"}, model="eu").providers[0].api_key == "vendor-key"


def test_a_provider_without_its_key_is_no_obstacle_until_it_is_used(home):
    toml = '[providers.work]\nkind = "openai"\napi_key_env = "WORK"\nmodel = "m"'
    assert settings(home, toml).model.startswith("anthropic/")
    assert settings(home, toml, model="work").missing == "the provider 'work' has no key: set WORK"
    for kind, needed in (("scripted", "options = {"), ("outrider", 'base_url = "…"')):
        missing = settings(home, f'[providers.work]\nkind = "{kind}"\n', model="work/x").missing
        assert missing is not None and needed in missing and "key" not in missing


def test_agents_have_their_own_instructions_tools_rules_and_limits(home):
    (home / "reviewer.md").write_text("Review.")
    toml = """
        agent = "reviewer"
        [limits]
        turns = 30
        [agents.reviewer]
        role = "reviews"
        instructions_file = "reviewer.md"
        mode = "plan"
        tools = ["read", "grep"]
        permissions = { deny = ["shell"] }
        limits = { cost = 0.5 }
        reasoning = true
    """
    reviewer, outrider = settings(home, toml).agents
    assert (reviewer.name, reviewer.instructions, reviewer.mode) == ("reviewer", "Review.", "plan")
    assert (reviewer.tools, reviewer.permissions) == (("read", "grep"), {"deny": ("shell",)})
    assert (reviewer.limits.turns, reviewer.limits.cost, reviewer.reasoning) == (30, Decimal("0.5"), True)
    assert outrider.name == "outrider"


def test_rules_and_limits_come_from_flags_and_file_together(home):
    toml = '[rules]\nallow = ["shell(git status)"]\ndeny = ["web_fetch"]\n[limits]\nturns = 5'
    found = settings(home, toml, allow=("read",), max_turns=7, max_cost=Decimal(2))
    assert (found.rules.allow, found.rules.deny) == (("read", "shell(git status)"), ("web_fetch",))
    assert (found.limits.turns, found.limits.cost) == (7, Decimal(2))


def test_the_user_s_own_prompt_takes_the_place_of_ours(home):
    (home / "prompts").mkdir()
    (home / "prompts" / "agent.md").write_text("Speak like a pirate.\n")
    assert settings(home).agents[0].instructions == "Speak like a pirate."


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("model = 3", "model: expected a string"),
        ("mode = 'quick'", f"mode: 'quick' is not allowed; allowed values: {', '.join(MODES)}"),
        ("approval = 'edit'", "approval: 'edit' is not allowed; did you mean edits"),
        ("model = 'yolo'", "model: there is no provider or model 'yolo'"),
        ("[limits]\nturns = 'many'", "limits.turns: expected a whole number"),
        ("[agents.a]\ntools = 'read'", r"agents\.a\.tools: expected a list, got a string"),
        ("[limits]\nturns = 0", "limits.turns: expected a whole number >= 1"),
        ("[retention]\ndays = -1", "retention.days: expected"),
        ("rules = []", "rules: expected a table"),
        ("= 3", "is not valid TOML"),
        ("[providers.p]\napi_key = 'sk'", "providers.p.api_key: keys are not allowed in this file"),
        ("[agents.a]\ninstructions = 'x'\ninstructions_file = 'y'", "agents.a: has both"),
        ("[agents.a]\ninstructions_file = 'absent.md'", "absent.md cannot be read"),
        ("[agents.a]\nmodel = 'opneai/x'", "agents.a.model: there is no provider 'opneai'; did you mean openai"),
        ("[providers.p]\nbase_url = 'http://x'", "providers.p.kind: is missing"),
        (
            "[providers.p]\nkind = 'openai'\nbase_url = 'localhost:8080'",
            "base_url: 'localhost:8080' is not a URL",
        ),
        ("agent = 'outrid'", "there is no agent 'outrid'; did you mean outrider"),
    ],
)
def test_a_mistake_is_named_by_file_and_key_and_what_was_expected(home, toml, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        settings(home, toml)
    assert "there is no agent" in message or str(home / "config.toml") in str(caught.value)


def test_a_variable_that_should_hold_the_key_and_is_not_set_is_noticed_where_it_matters(home):
    toml = 'model = "p/m"\n[providers.p]\nkind = "openai"\nbase_url = "http://x"\napi_key_env = "P_KEY"\n'
    assert [notice for notice in settings(home, toml).notices if "$P_KEY is not set" in notice]
    assert settings(home, toml, environ={"P_KEY": "k"}).notices == ()
    other = toml.replace('"p/m"', '"q/m"') + '[providers.q]\nkind = "openai"\nbase_url = "http://y"\n'
    assert settings(home, other).notices == ()


def test_everything_that_the_guide_shows_is_read(home):
    guide = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    toml = guide.partition("```toml\n")[2].partition("```")[0]
    found = settings(home, toml, environ={**KEY, "HOME_SERVER_KEY": "k"})
    assert (found.notices, found.missing) == ((), "")
    assert (found.background.queues["runs"].at_once, found.retention.days) == (20, 90)
    catalog = ModelCatalog.from_config(found.models)
    assert catalog.context_limit("openai", "qwen3", base_url="http://127.0.0.1:8080/v1") == 32768
    assert catalog.cost_of("openai", "qwen3", Tokens(output=1_000_000)) == Decimal("0.6")
    assert set(tomllib.loads(toml)) == set(ConfigFile.__struct_fields__), "the guide leaves something out"
    tables = [kind for name, kind in vars(file).items() if name.endswith("Table")]
    left_out = [f"{table.__name__}.{key}" for table in tables for key in table.__struct_fields__ if key not in toml]
    assert not left_out, "the guide leaves something out"


def test_a_name_that_people_choose_is_known_and_what_is_below_it_is_looked_at(home):
    toml = "[background.queues.nightly]\nat_once = 2\nat_onse = 3\n[background]\nrun = 1\n"
    assert [notice.partition(": ")[2] for notice in settings(home, toml).notices] == [
        "background.queues.nightly.at_onse is unknown and ignored; did you mean at_once?",
        "background.run is unknown and ignored; did you mean runs?",
    ]


def test_an_unknown_key_is_noticed_and_nothing_is_lost(home):
    toml = (
        'modle = "x"\nmode = "plan"\n[limits]\nturn = 3\n[agents.a]\nrol = "r"\n[providers.anthropic.headers]\nx = "y"'
    )
    found = settings(home, toml)
    assert found.mode == "plan"
    assert [notice.partition(": ")[2] for notice in found.notices] == [
        "modle is unknown and ignored; did you mean model?",
        "limits.turn is unknown and ignored; did you mean turns?",
        "agents.a.rol is unknown and ignored; did you mean role?",
    ]


def test_a_file_that_cannot_be_read_is_named(home):
    (home / "config.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"config\.toml: is not a file"):
        settings(home)
    (home / "config.toml").rmdir()
    (home / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"config\.toml: is not UTF-8"):
        settings(home)


def test_a_workspace_that_is_no_folder_is_refused(home):
    with pytest.raises(ConfigurationError, match="is not a folder"):
        read_settings(cwd=home / "absent", environ={"OUTRIDER_HOME": str(home)})


def test_a_wrong_mode_flag_is_explained(home):
    with pytest.raises(ConfigurationError, match="did you mean plan"):
        settings(home, mode="plann")


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        ("[rules]\ndeny = ['shell(rm']", {}, r"config\.toml: rules\.deny: 'shell\(rm' is not a rule"),
        ("[agents.a.permissions]\nask = ['']", {}, r"agents\.a\.permissions\.ask: '' is not a rule"),
        ("", {"allow": ('shell("a)',)}, r"flags\.allow: .* its quotes are not closed"),
    ],
)
def test_a_rule_that_cannot_be_read_is_an_error(home, toml, flags, message):
    with pytest.raises(ConfigurationError, match=message):
        settings(home, toml, **flags)


def test_a_rule_for_a_tool_that_is_misspelt_is_noticed(home):
    toml = "[rules]\ndeny = ['shel(rm *)', 'mcp__files__*', 'bash(ls)', 'own_tool']"
    assert [notice.partition(": ")[2] for notice in settings(home, toml).notices] == [
        "rules.deny: 'shel(rm *)' names no built-in tool; did you mean shell?"
    ]


def test_a_server_that_cannot_be_started_is_noticed_and_costs_only_itself(home):
    toml = "[mcp.a]\ncommand = 3\n[mcp.b]\nurl = 'ftp://x'\n[mcp.c]\ncommand = 'serve'\nenv = { KEY = '${NOT_SET}' }"
    assert [notice.partition(": ")[2] for notice in settings(home, toml).notices] == [
        "mcp.a.command: expected a string, got a number",
        "mcp.b.url: expected an address that begins with http:// or https://",
        "mcp.c.env.KEY: the variable NOT_SET is not set, and there is no default",
    ]


def test_a_server_on_this_machine_is_used_when_it_is_named_and_never_gets_a_vendors_key(tmp_path):
    environ = {"HOME": str(tmp_path), "OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": "https://elsewhere.test/v1"}
    settings = read_settings(cwd=tmp_path, environ=environ, flags=CommandFlags(model="ollama/qwen2.5-coder:7b"))
    (ollama,) = [provider for provider in settings.providers if provider.name == "ollama"]
    assert (ollama.kind, ollama.api_key, ollama.base_url) == ("openai", "", "http://127.0.0.1:11434/v1")
    assert settings.agents[0].model == "qwen2.5-coder:7b"
    others = read_settings(cwd=tmp_path, environ=environ).providers
    assert not [provider.name for provider in others if provider.name in ("ollama", "vllm")]


def test_a_server_on_this_machine_has_no_default_model(tmp_path):
    with pytest.raises(ConfigurationError, match="write ollama/MODEL"):
        read_settings(cwd=tmp_path, environ={"HOME": str(tmp_path)}, flags=CommandFlags(model="ollama"))


def test_retries_are_set_by_flag_agent_provider_and_file(home):
    toml = (
        "[retry]\nattempts = 7\ntotal = 60\n[providers.anthropic.options.retry]\nattempts = 5\n"
        "[agents.patient]\nretry = { attempts = 20 }\n"
    )
    found = settings(home, toml)
    assert found.providers[0].options["retry"] == {"attempts": 5, "total": 60}
    by_name = {agent.name: agent.retry for agent in found.agents}
    assert by_name["outrider"] is None
    assert (by_name["patient"].attempts, by_name["patient"].total) == (20, 60)
    flagged = settings(home, toml, retry_attempts=2)
    assert flagged.providers[0].options["retry"]["attempts"] == 2
    assert {agent.retry.attempts for agent in flagged.agents if agent.retry} == {2}


def test_a_list_of_models_names_fallbacks(home):
    environ = {**KEY, "OPENAI_API_KEY": "sk-2"}
    toml = 'model = ["anthropic/one", "openai/two"]\n'
    (agent,) = settings(home, toml, environ).agents
    assert (agent.provider, agent.model, agent.fallback_models) == ("anthropic", "one", ("openai/two",))
    flagged = settings(home, toml, environ, model="openai/three,anthropic/four")
    assert flagged.model == "openai/three"
    assert flagged.agents[0].fallback_models == ("anthropic/four",)
    assert {"openai", "anthropic"} <= {provider.name for provider in flagged.providers}
    with pytest.raises(ConfigurationError, match="no provider 'nobody'"):
        settings(home, 'model = ["anthropic/one", "nobody/two"]', environ)
