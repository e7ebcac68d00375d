"""The command lines `headrace fake-engine` and `headrace load`."""

import asyncio
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headrace.cli import main
from tests.headrace.demo.conftest import MODEL, chat

IDENTITY = ["fake-engine", "--engine", "us-east", "--replica", "r1", "--model", MODEL]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rtt", "us-east"], "--rtt 'us-east': expected front-end=milliseconds"),
        (["--rtt", "us-east=-1"], "expected front-end=milliseconds, 0 to 60000"),
        (["--rtt", "us-east=nan"], "expected front-end=milliseconds, 0 to 60000"),
        (["--capacity-rps", "40"], "capacity_rps is 40, expected below lambda_max_rps (30)"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    result = CliRunner().invoke(main, IDENTITY + options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_profile_file_with_a_misspelt_field_is_refused(tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text("t0_msec: 24\n")
    result = CliRunner().invoke(main, [*IDENTITY, "--profile", str(file)])
    assert result.exit_code == 2
    assert "unknown field 't0_msec'" in result.output


async def test_a_policy_profile_and_options_together_make_the_curve(spawn, tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text("{t0_ms: 2, lambda_max_rps: 500, capacity_rps: 400, ttft_ms: {base: 4}}")
    _, client = await spawn("--profile", str(file), "--output-tokens", "3", "--max-num-seqs", "7")
    async with client.post(chat()) as response:
        assert (await response.json())["usage"]["completion_tokens"] == 3
    assert (await client.json("/stats"))["max_num_seqs"] == 7


async def test_ports_are_published_in_a_file(spawn, tmp_path):
    file = tmp_path / "ports.json"
    process, client = await spawn("--ports-file", str(file), "--admin-port", "0")
    async with client.get("/health"):
        ports = json.loads(file.read_text())
    assert client.url.endswith(f":{ports['http']}")
    assert ports["admin"] not in (None, 0, ports["http"])
    assert ports["pid"] == process.pid


def test_an_engine_that_does_not_report_loads_no_heavy_module():
    program = (
        "import sys, headrace.commands.fake_engine, headrace.demo.fake_engine.server;"
        "print(sorted({'grpc', 'numpy', 'scipy', 'pulp', 'openai', 'pydantic'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


async def test_load_prints_a_line_a_front_end_and_writes_the_same(start, tmp_path):
    _, client = await start()
    file = tmp_path / "load.json"
    arguments = ["load", "--target", f"us-east={client.url}", "--rate", "us-east=100", "--model", MODEL]
    arguments += ["--duration", "0.3", "--json", str(file)]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exit_code == 0, result.output
    line = json.loads(result.output)
    assert line.pop("frontend") == "us-east"
    assert line == json.loads(file.read_text())["us-east"]
    assert line["ok"] == line["requests"] > 0


def test_load_refuses_a_rate_without_a_target():
    result = CliRunner().invoke(main, ["load", "--target", "a=http://x", "--rate", "b=1", "--model", MODEL])
    assert result.exit_code == 2
    assert "--rate names 'b', which has no --target" in result.output
