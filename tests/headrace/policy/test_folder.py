"""A policy in several files, and profiles in files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.policy import PolicyError, load


def split(base: str, folder) -> None:
    """Put everything from `classes` on into a second file."""
    at = base.index("classes:\n")
    (folder / "a.yaml").write_text(base[:at])
    (folder / "b.yml").write_text(base[at:])


def problems(path) -> list[str]:
    with pytest.raises(PolicyError) as error:
        load(path)
    return [str(problem) for problem in error.value.problems]


def test_the_files_of_a_folder_are_one_policy(base, write, tmp_path):
    whole = load(write())
    folder = tmp_path / "policy"
    folder.mkdir()
    split(base, folder)
    merged = load(folder)
    assert merged == whole
    assert merged.content_hash == whole.content_hash
    assert merged.document.model_dump_json() == whole.document.model_dump_json()


def test_a_section_may_be_spread_over_files(base, tmp_path, write):
    whole = load(write())
    folder = tmp_path / "policy"
    folder.mkdir()
    spot = next(line for line in base.splitlines(keepends=True) if line.startswith("  spot:"))
    rtt = "    eu-west: {us-west: 137, lab: 80}\n"
    (folder / "a.yaml").write_text(base.replace(spot, "").replace(rtt, ""))
    (folder / "b.yaml").write_text(f"engines:\n{spot}network:\n  rtt_ms:\n{rtt}")
    assert load(folder) == whole


def test_the_same_key_in_two_files_names_both(base, tmp_path):
    (tmp_path / "a.yaml").write_text(base)
    (tmp_path / "b.yaml").write_text("fleet: other\nengines:\n  spot: {model: x}\n")
    one, two = tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert problems(tmp_path) == [
        f"{two}:1: fleet: the key is also in {one}:2; expected each key in one file",
        f"{two}:3: engines.spot: the key is also in {one}:43; expected each key in one file",
    ]


def test_a_file_that_cannot_be_read_hides_what_is_missing_because_of_it(base, tmp_path):
    split(base, tmp_path)
    (tmp_path / "b.yml").write_text("classes: [")
    (told,) = problems(tmp_path)
    assert told.startswith(f"{tmp_path}/b.yml:2: not valid YAML")


def test_other_files_and_folders_are_left_alone(base, tmp_path):
    (tmp_path / "a.yaml").write_text(base)
    (tmp_path / "README.md").write_text("fleet: [")
    (tmp_path / ".hidden.yaml").write_text("fleet: [")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "x.yaml").write_text("fleet: [")
    assert load(tmp_path).fleet == "prod"


def test_a_folder_without_files_is_refused(tmp_path):
    assert problems(tmp_path) == [
        f"{tmp_path}: the folder has no *.yaml file; expected one or more policy files"
    ]


def test_a_missing_file_is_refused(tmp_path):
    assert problems(tmp_path / "no.yaml") == [
        f"{tmp_path}/no.yaml: there is no such file; expected a readable YAML file"
    ]


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text("# nothing\n")
    assert problems(tmp_path / "p.yaml") == [
        f"{tmp_path}/p.yaml: the file is empty; expected `key: value` lines"
    ]


def test_a_file_that_is_not_a_map_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text("- a\n")
    assert problems(tmp_path / "p.yaml") == [
        f"{tmp_path}/p.yaml: the file is not a map; expected `key: value` lines"
    ]


def test_a_file_over_one_mebibyte_is_refused(base, tmp_path):
    (tmp_path / "p.yaml").write_text(base + "#" * (1 << 20))
    assert problems(tmp_path / "p.yaml") == [
        f"{tmp_path}/p.yaml: the file is larger than 1 MiB; expected at most 1048576 bytes"
    ]


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "p.yaml").write_bytes(b"version: 1\n# \xff\n")
    assert problems(tmp_path / "p.yaml") == [f"{tmp_path}/p.yaml: byte 13 is not UTF-8; expected UTF-8 text"]


def test_an_alias_bomb_is_refused_at_once(tmp_path):
    lines = ["a: &a0 [x]"] + [f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    told = problems(tmp_path / "p.yaml")
    assert any("anchors and aliases" in text for text in told)
    assert len(told) < 500


def test_an_alias_to_itself_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text("regions: &r\n  a: *r\n")
    assert any("regions.a: anchors and aliases" in text for text in problems(tmp_path / "p.yaml"))


# profiles


@pytest.fixture
def with_profile_file(base, tmp_path):
    start, end = base.index("  a100:\n"), base.index("defaults:\n")
    body = base[start:end].removeprefix("  a100:\n").replace("    ", "")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "a100.yaml").write_text(body)
    (tmp_path / "policy.yaml").write_text(base[:start] + "  a100: {file: profiles/a100.yaml}\n" + base[end:])
    return tmp_path / "policy.yaml"


def test_a_profile_in_a_file_counts_like_one_in_the_policy(with_profile_file, write, base, tmp_path):
    inline = tmp_path / "inline.yaml"
    inline.write_text(base)
    policy = load(with_profile_file)
    assert policy == load(inline)
    assert policy.files == (str(with_profile_file), str(tmp_path / "profiles" / "a100.yaml"))


def test_what_headrace_fit_adds_to_a_profile_is_accepted(with_profile_file, tmp_path):
    file = tmp_path / "profiles" / "a100.yaml"
    file.write_text(file.read_text() + "source: measured\nfit: {r2: 0.99, points: [1, 2]}\n")
    assert load(with_profile_file).profiles["a100"].fit == {"points": (1, 2), "r2": 0.99}


def test_faults_in_a_profile_file_name_that_file(with_profile_file, tmp_path):
    file = tmp_path / "profiles" / "a100.yaml"
    file.write_text(file.read_text().replace("capacity_rps: 25", "capacity_rps: fast"))
    assert problems(with_profile_file) == [
        f"{file}:1: profiles.a100.capacity_rps: is the text 'fast'; expected a number"
    ]


def test_a_missing_profile_file_names_it(with_profile_file, tmp_path):
    (tmp_path / "profiles" / "a100.yaml").unlink()
    assert problems(with_profile_file) == [
        f"{tmp_path}/profiles/a100.yaml: profiles.a100: there is no such file; expected a readable YAML file"
    ]


def test_a_profile_is_a_file_or_written_out(with_profile_file):
    text = with_profile_file.read_text()
    with_profile_file.write_text(text.replace("a100.yaml}", "a100.yaml, capacity_rps: 3}"))
    assert (
        "profiles.a100: has other keys beside `file`; expected only `file`" in problems(with_profile_file)[0]
    )


# tokens

DIGEST = "0a" * 32
REPORTS = "security: {reports: {cert: {file: a}, key: {file: b}, tokens: {file: tokens.yaml}}}\n"


def test_tokens_may_be_in_a_file_and_name_several_engines(write, tmp_path):
    (tmp_path / "tokens.yaml").write_text(
        f"us-east-h100-{{01..02}}: [{DIGEST}]\nspot: [{'1b' * 32}, {DIGEST}]\n"
    )
    policy = load(write(extra=REPORTS))
    assert policy.report_tokens() == {
        "us-east-h100-01": {DIGEST},
        "us-east-h100-02": {DIGEST},
        "spot": {DIGEST, "1b" * 32},
    }
    assert str(tmp_path / "tokens.yaml") in policy.files


def test_faults_in_a_token_file_name_that_file(write, tmp_path):
    (tmp_path / "tokens.yaml").write_text("\nspot: [secret]\n")
    assert problems(write(extra=REPORTS)) == [
        f"{tmp_path}/tokens.yaml:2: security.reports.tokens.spot[0]: is not a SHA-256 digest; "
        "expected 64 hex digits: printf %s TOKEN | sha256sum"
    ]


def test_without_security_there_are_no_tokens(write):
    assert load(write()).report_tokens() == {}


# secrets


def test_files_of_security_are_relative_to_the_file_that_names_them(base, tmp_path):
    (tmp_path / "a.yaml").write_text(base)
    tls = "cert: {file: tls.crt}, key: {file: /etc/tls.key}, client_ca: {file: ca/edge.crt}"
    (tmp_path / "b.yaml").write_text(f"security: {{xds: {{{tls}, identity: 'spiffe://p/{{frontend}}'}}}}\n")
    policy = load(tmp_path)
    assert policy.secret_path("xds", "cert") == tmp_path / "tls.crt"
    assert policy.secret_path("xds", "key") == Path("/etc/tls.key")
    assert policy.secret_path("xds", "client_ca") == tmp_path / "ca" / "edge.crt"
    with pytest.raises(KeyError):
        policy.secret_path("reports", "cert")
