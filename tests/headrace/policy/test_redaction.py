"""Nothing that is shown, logged or refused repeats a token, or the digest that it is checked with."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.admin.app import _pending
from headrace.cli import main
from headrace.control_plane.policy_gate import PolicyGate
from headrace.control_plane.telemetry import Telemetry
from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.profile import EngineProfile
from headrace.log import make_logger
from headrace.policy import Policy, PolicyError, load
from headrace.policy.guards import Hold, differences
from signals.identity import IdentityRule, Proof, Refused, token_digest

TOKEN = "hunter2-4711"
DIGEST, OTHER, THIRD = map(token_digest, (TOKEN, "another", "third"))
SPOT = "security.reports.tokens.spot"


def security(tokens: str, key: str = "{file: b}") -> str:
    return f"security: {{reports: {{cert: {{file: a}}, key: {key}, tokens: {tokens}}}}}\n"


@pytest.fixture
def written(base: str, tmp_path: Path) -> Any:
    """Write a policy with these tokens; returns its file."""

    def write(*digests: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(base + security(f"{{spot: [{', '.join(digests)}]}}"))
        return path

    return write


def without_digests(text: str) -> bool:
    return not any(secret in text for secret in (TOKEN, DIGEST, OTHER, THIRD))


def test_effective_values_say_how_many_tokens_an_engine_has_and_where_they_are_written(written: Any):
    said = CliRunner().invoke(main, ["check", str(written(DIGEST, OTHER)), "--effective"]).stdout
    assert f'{SPOT}: ["redacted", "redacted"]  # ' in said
    assert 'security.reports.key.file: "b"' in said
    assert without_digests(said)


def test_effective_values_for_scripts_hold_no_digest(written: Any):
    said = CliRunner().invoke(main, ["check", str(written(DIGEST)), "--effective", "--json"]).stdout
    assert json.loads(said)["effective"][SPOT]["value"] == ["redacted"]
    assert without_digests(said)


def test_an_edit_of_tokens_is_seen_and_its_values_are_not(written: Any):
    old, new = load(written(DIGEST)), load(written(OTHER))
    [found] = differences(old, new)
    assert (found.path, found.old, found.new) == (SPOT, ("redacted",), ("redacted",))


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


def gate_of(policy: Policy, path: Path, log: io.StringIO) -> PolicyGate:
    async def hold(policy: Policy, rules: object) -> Hold:
        return Hold(("moves much",))

    return PolicyGate(
        path,
        in_force=lambda: policy,
        check=lambda policy: None,
        judge=hold,
        adopt=lambda policy, rules: None,
        telemetry=Telemetry(make_logger(log)),
    )


async def test_a_held_edit_of_tokens_is_shown_and_logged_without_them(written: Any, log: io.StringIO):
    gate = gate_of(load(written(DIGEST)), written(DIGEST), log)
    await gate.take(load(written(OTHER, THIRD)))
    said = json.dumps(_pending(SimpleNamespace(gate=gate)))  # type: ignore[arg-type] # only the gate is read
    assert SPOT in said
    assert "moves much" in said
    assert without_digests(said + log.getvalue())


MISPLACED = {
    "text for a list": security(f"{{spot: {TOKEN}}}"),
    "text for a map": security(TOKEN),
    "text for a digest": security(f"{{spot: [{TOKEN}]}}"),
    "number for a digest": security("{spot: [4711]}"),
    "number in another notation": security("{spot: [0x4711]}"),
    "tag": security(f"{{spot: [!{TOKEN} x]}}"),
    "tag of a list": security(f"{{spot: !{TOKEN} [x]}}"),
    "name": security("{4711: [x]}"),
    "key": security("{}", key=TOKEN),
    "list for a key": security("{}", key=f"[{TOKEN}]"),
    "file of a key": security("{}", key=f"{{file: [{TOKEN}]}}"),
    "key beside its file": security("{}", key=f"{{file: b, pem: {TOKEN}}}"),
    "security": f"security: {TOKEN}\n",
    "reports": f"security: {{reports: {TOKEN}}}\n",
}


@pytest.mark.parametrize("text", MISPLACED.values(), ids=MISPLACED)
async def test_a_secret_written_out_is_refused_and_not_repeated(
    base: str, tmp_path: Path, log: io.StringIO, text: str
):
    path = tmp_path / "policy.yaml"
    path.write_text(base)
    in_force = load(path)
    path.write_text(base + text)
    with pytest.raises(PolicyError) as caught:
        load(path)
    gate = gate_of(in_force, path, log)
    await gate.take(caught.value)
    assert "policy_refused" in log.getvalue()
    assert "security" in gate.error
    assert "4711" not in gate.error + log.getvalue()


@pytest.mark.parametrize(
    "text",
    [f"spot: {TOKEN}\n", TOKEN, f"spot: [{TOKEN}\n", f"spot: [*{TOKEN}]\n", f"spot: [!{TOKEN} x]\n"],
    ids=["text", "only a token", "broken", "alias", "tag"],
)
def test_what_a_file_of_tokens_holds_is_not_repeated(base: str, tmp_path: Path, text: str):
    (tmp_path / "tokens.yaml").write_text(text)
    (tmp_path / "policy.yaml").write_text(base + security("{file: tokens.yaml}"))
    with pytest.raises(PolicyError) as caught:
        load(tmp_path / "policy.yaml")
    assert "tokens.yaml" in str(caught.value)
    assert "4711" not in str(caught.value)


def test_other_values_are_repeated_so_that_their_author_finds_them(base: str, tmp_path: Path):
    path = tmp_path / "policy.yaml"
    path.write_text(base.replace("t0_ms: 24", "t0_ms: soon"))
    with pytest.raises(PolicyError, match="is the text 'soon'"):
        load(path)


def test_a_reporter_is_refused_without_its_token_or_any_digest():
    rule = IdentityRule(tokens={"spot": frozenset({OTHER})})
    with pytest.raises(Refused) as caught:
        rule.check("spot", "", "", Proof(token_sha256=DIGEST))
    assert without_digests(str(caught.value) + caught.value.reason)


def test_an_engines_own_token_is_not_in_what_it_prints_of_itself():
    assert TOKEN not in repr(EngineConfig("spot", "r1", ("chat",), EngineProfile(), token=TOKEN))
