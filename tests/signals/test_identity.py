"""Who may report: certificates, tokens and address rules, over real TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from signals.admission import Admission, EngineRule
from signals.client import ReportClient
from signals.identity import IdentityRule, Proof, Refused, token_digest
from signals.membership import Membership
from signals.messages import Sample, State
from signals.report_service import ReportService
from signals.tls import TlsFiles, channel_credentials, server_credentials

from .conftest import LIMITS, LLAMA, hello

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl program for certificates"
)

RULE = EngineRule("us", served_models=frozenset({LLAMA}), cidrs=(ipaddress.ip_network("10.16.0.0/12"),))
IDENTITY = IdentityRule(
    template="spiffe://prod/engine/{engine}",
    tokens={"us-a100": frozenset({token_digest("s3cret")})},
)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        key = self._key("ca")
        self._openssl(
            *(
                "req",
                "-x509",
                "-new",
                "-key",
                key,
                "-subj",
                "/CN=test authority",
                "-days",
                "2",
                "-out",
                self.ca,
            ),
        )

    def issue(self, name: str, *sans: str) -> TlsFiles:
        cert, request = self.folder / f"{name}.crt", self.folder / f"{name}.csr"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(sans)}")
        key = self._key(name)
        self._openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", cert),
        )
        return TlsFiles(cert=cert, key=key, ca=self.ca)

    def _key(self, name: str) -> Path:
        key = self.folder / f"{name}.key"
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        return key

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@dataclass
class Certificates:
    authority: Authority
    server: TlsFiles
    engine: TlsFiles


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    return Certificates(
        authority,
        authority.issue("server", "IP:127.0.0.1"),
        authority.issue("engine", "URI:spiffe://prod/engine/us-h100"),
    )


@pytest.fixture
async def secured(certificates):
    """Serves with given files; yields a function that reports and returns what became of it."""
    membership, results = Membership(), Counter()
    admission = Admission(fleet="prod", engines={"us-h100": RULE, "us-a100": RULE}, identity=IDENTITY)
    service = ReportService(
        membership, admission, limits=LIMITS, on_result=lambda result: results.update([result])
    )
    port = 0

    async def start(files: TlsFiles) -> None:
        nonlocal port
        port = await service.start("127.0.0.1", 0, server_credentials(files))

    async def report(greeting, files: TlsFiles, token: str = "", limit_s: float = 5.0) -> str:
        """The refusal, or "" when accepted."""
        client = ReportClient(
            [f"127.0.0.1:{port}"],
            greeting,
            lambda: Sample(state=State.READY),
            credentials=channel_credentials(files),
            metadata=[("authorization", f"Bearer {token}")] if token else [],
        )
        link = client.links[f"127.0.0.1:{port}"]
        task = asyncio.create_task(client.run())
        try:
            async with asyncio.timeout(limit_s):
                await client.answered()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return link.refused or ""

    report.start, report.results, report.service, report.membership = start, results, service, membership
    yield report
    await service.stop()


async def test_a_certificate_proves_its_own_engine_only(secured, certificates):
    await secured.start(certificates.server)
    assert await secured(hello(address="10.16.0.5"), certificates.engine) == ""
    refused = await secured(hello("us-a100", address="10.16.0.6"), certificates.engine)
    assert refused.startswith("identity: nothing proves that this is us-a100")
    assert secured.results["identity"] == 1
    assert list(secured.membership.view().engines) == ["us-h100"]


async def test_without_a_client_certificate_there_is_no_handshake(secured, certificates):
    await secured.start(certificates.server)
    with pytest.raises(TimeoutError):
        await secured(hello(address="10.16.0.5"), TlsFiles(ca=certificates.authority.ca), limit_s=0.5)
    assert not secured.results


async def test_a_token_proves_its_own_engine_only(secured, certificates):
    await secured.start(TlsFiles(certificates.server.cert, certificates.server.key))
    only_ca = TlsFiles(ca=certificates.authority.ca)
    assert await secured(hello("us-a100", address="10.16.0.6"), only_ca, "s3cret") == ""
    assert "identity" in await secured(hello("us-h100", address="10.16.0.7"), only_ca, "s3cret")
    assert "identity" in await secured(hello("us-a100", address="10.16.0.8"), only_ca, "guess")
    assert "identity" in await secured(hello("us-a100", address="10.16.0.8"), only_ca)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.32.0.1",
        "169.254.169.254",
        "fd00:ec2::254",
        "::1",
        "0.0.0.0",
        "224.0.0.1",
        "::ffff:10.16.0.5",
    ],
)
def test_addresses_outside_the_regions_networks_are_refused(address):
    anything = EngineRule(
        "us", cidrs=(ipaddress.ip_network("10.16.0.0/12"), ipaddress.ip_network("fd00::/8"))
    )
    rules = Admission("prod", {"us-a100": anything}, identity=IDENTITY)
    with pytest.raises(Refused) as refused:
        rules.check(hello("us-a100", address=address), Proof(token_sha256=token_digest("s3cret")))
    assert refused.value.code == "address"


async def test_a_replaced_certificate_is_used_from_the_next_handshake_on(secured, certificates, tmp_path):
    other = Authority(tmp_path)
    old, new = (
        certificates.authority.issue("server-old", "IP:127.0.0.1"),
        other.issue("server-new", "IP:127.0.0.1"),
    )
    served = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    for source, target in ((old.cert, served.cert), (old.key, served.key)):
        shutil.copy(source, target)
    await secured.start(served)
    assert (
        await secured(hello("us-a100", address="10.16.0.6"), TlsFiles(ca=certificates.authority.ca), "s3cret")
        == ""
    )
    for source, target in ((new.cert, served.cert), (new.key, served.key)):
        shutil.copy(source, target)
    assert await secured(hello("us-a100", address="10.16.0.6"), TlsFiles(ca=other.ca), "s3cret") == ""


async def test_a_reporter_that_new_rules_do_not_admit_is_expelled(fleet, reporter):
    reporter(hello(), lambda: Sample(state=State.READY))
    await fleet.until(lambda: "r1" in fleet.replicas(), "joined")
    fleet.service.admission = Admission("prod", {}, insecure_dev=True)
    await fleet.until(lambda: fleet.replicas() == {}, "expelled")
    await fleet.until(lambda: fleet.results["unknown_engine"] >= 1, "refused")


async def test_tls_without_an_identity_rule_is_not_listened_to(certificates):
    service = ReportService(Membership(), Admission("prod"))
    with pytest.raises(ValueError, match="identity"):
        await service.start("127.0.0.1", 0, server_credentials(certificates.server))
