"""Who may connect: certificates, rotation, fleets, versions. Everything that is not allowed is refused."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest
import pytest_asyncio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.envoy.type import v3 as type_v3
from envoy_data_plane.google import protobuf
from grpc import aio

from signals.tls import TlsFiles, server_credentials
from tests.conformance.dialogue import FRONTEND, World
from tests.conformance.resources import snapshot
from xds_server.events import Connected, Refused
from xds_server.identity import Admission
from xds_server.resource_types import CDS
from xds_server.services import AGGREGATED

NAMES = {FRONTEND: ["spiffe://prod/frontend/us-east"], "eu-west": ["spiffe://prod/frontend/eu-west"]}
METHOD = f"/{AGGREGATED}/DeltaAggregatedResources"
SERVER_NAME = "control-plane.example"


class Authority:
    """A certificate authority and the files of the server."""

    def __init__(self, folder):
        self.ca = trustme.CA()
        self.files = TlsFiles(*(folder / name for name in ("cert", "key", "ca")))
        self.issue_server()
        self.files.ca.write_bytes(self.ca.cert_pem.bytes())

    def issue_server(self):
        leaf = self.ca.issue_cert(SERVER_NAME)
        self.files.key.write_bytes(leaf.private_key_pem.bytes())
        self.files.cert.write_bytes(leaf.cert_chain_pems[0].bytes())

    def client(self, name):
        return issue_with_uri(self.ca, name)


def issue_with_uri(ca, uri):
    """Key and certificate, PEM. trustme issues no URI names: one is signed with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    signer = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
        .sign(signer, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return key_pem, pem


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest_asyncio.fixture
async def secure(authority):
    """A world that listens with mutual TLS and checks front-end names."""
    world = World(admission=Admission(certificate_names=NAMES))
    world.services.register(world._grpc)
    world._port = world._grpc.add_secure_port("127.0.0.1:0", server_credentials(authority.files))
    await world._grpc.start()
    world.server.publish(FRONTEND, snapshot(CDS, {"a": "1"}))
    world.server.publish("eu-west", snapshot(CDS, {"a": "1"}))
    yield world
    await world.stop()


def channel(world, authority, pair=None, root=None):
    key, certificate = pair or (None, None)
    credentials = grpc.ssl_channel_credentials(root or authority.ca.cert_pem.bytes(), key, certificate)
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    return aio.secure_channel(world.address, credentials, options=options)


async def first_answer(channel, **node):
    """Names in the first answer; raises AioRpcError."""
    call = channel.stream_stream(METHOD)()
    message = core.Node(**{"id": "envoy", "cluster": FRONTEND, **node})
    await call.write(bytes(discovery.DeltaDiscoveryRequest(node=message, type_url=CDS.url)))
    body = await call.read()
    call.cancel()
    return [resource.name for resource in discovery.DeltaDiscoveryResponse.parse(body).resources]


async def refusal(channel, **node):
    with pytest.raises(aio.AioRpcError) as refused:
        await first_answer(channel, **node)
    return refused.value.code()


async def test_the_certificate_of_the_front_end_is_admitted(secure, authority):
    async with channel(secure, authority, authority.client(*NAMES[FRONTEND])) as found:
        assert await first_answer(found) == ["a"]
        await secure.until(lambda: not secure.server.connections())


async def test_the_certificate_of_another_front_end_is_refused(secure, authority):
    async with channel(secure, authority, authority.client(*NAMES["eu-west"])) as found:
        assert await refusal(found) is grpc.StatusCode.PERMISSION_DENIED
        assert [event.reason for event in secure.of(Refused)] == ["certificate"]
        assert await first_answer(found, cluster="eu-west") == ["a"]
        await secure.until(lambda: not secure.server.connections())


async def test_without_a_certificate_or_with_a_strangers_there_is_no_connection(secure, authority, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").client(*NAMES[FRONTEND])
    for pair in None, stranger:
        async with channel(secure, authority, pair) as found:
            assert await refusal(found) is grpc.StatusCode.UNAVAILABLE
    assert not secure.of(Connected)


async def test_a_rotated_server_certificate_is_used_for_new_connections(secure, authority, tmp_path):
    """The old authority is gone from the client's trust, so only the new certificate can have served it."""
    pair = authority.client(*NAMES[FRONTEND])
    async with channel(secure, authority, pair) as found:
        running = found.stream_stream(METHOD)()
        node = core.Node(id="envoy", cluster=FRONTEND)
        await running.write(bytes(discovery.DeltaDiscoveryRequest(node=node, type_url=CDS.url)))
        assert await running.read()
        (tmp_path / "new").mkdir()
        renewed = Authority(tmp_path / "new")
        authority.files.key.write_bytes(renewed.files.key.read_bytes())
        authority.files.cert.write_bytes(renewed.files.cert.read_bytes())
        root = renewed.ca.cert_pem.bytes()
        async with channel(secure, authority, pair, root) as again:
            assert await first_answer(again) == ["a"]
        assert not running.done()
        running.cancel()
    await secure.until(lambda: not secure.server.connections())


async def test_withdrawing_a_name_ends_the_streams_it_admitted(secure, authority):
    async with channel(secure, authority, authority.client(*NAMES[FRONTEND])) as found:
        call = found.stream_stream(METHOD)()
        node = core.Node(id="envoy", cluster=FRONTEND)
        await call.write(bytes(discovery.DeltaDiscoveryRequest(node=node, type_url=CDS.url)))
        assert await call.read()
        secure.server.admission = Admission(certificate_names={FRONTEND: ["spiffe://prod/frontend/renamed"]})
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_front_end_without_certificate_names_admits_nobody(secure, authority):
    secure.server.admission = Admission(certificate_names={})
    async with channel(secure, authority, authority.client(*NAMES[FRONTEND])) as found:
        assert await refusal(found) is grpc.StatusCode.PERMISSION_DENIED


async def open_world(**options):
    world = World(**options)
    await world.start()
    world.server.publish(FRONTEND, snapshot(CDS, {"a": "1"}))
    return world


async def test_without_tls_nobody_has_the_names_that_a_policy_demands():
    world = await open_world(admission=Admission(certificate_names=NAMES))
    async with aio.insecure_channel(world.address) as found:
        assert await refusal(found) is grpc.StatusCode.PERMISSION_DENIED
    await world.stop()


def fleet(name):
    return protobuf.Struct(fields={"fleet": protobuf.Value(string_value=name)})


async def test_another_fleet_is_refused():
    world = await open_world(fleet="prod")
    async with aio.insecure_channel(world.address) as found:
        assert await refusal(found) is grpc.StatusCode.FAILED_PRECONDITION
        assert await refusal(found, metadata=fleet("staging")) is grpc.StatusCode.FAILED_PRECONDITION
        assert await first_answer(found, metadata=fleet("prod")) == ["a"]
    assert [event.reason for event in world.of(Refused)] == ["fleet", "fleet"]
    assert "'staging'" in world.of(Refused)[1].message
    await world.stop()


def envoy(major, minor, patch):
    version = type_v3.SemanticVersion(major_number=major, minor_number=minor, patch=patch)
    return {"user_agent_name": "envoy", "user_agent_build_version": core.BuildVersion(version=version)}


async def test_known_bad_versions_are_refused_and_untested_ones_warned_about():
    world = await open_world()
    async with aio.insecure_channel(world.address) as found:
        assert await refusal(found, **envoy(1, 38, 0)) is grpc.StatusCode.FAILED_PRECONDITION
        for version in (1, 39, 2), (1, 40, 1):
            assert await first_answer(found, **envoy(*version)) == ["a"]
    assert "1.38.0" in world.of(Refused)[0].message
    untested, tested = world.of(Connected)
    assert "1.39.2 has not been tested" in untested.warning
    assert tested.warning == ""
    assert tested.client.build == "1.40.1"
    await world.stop()
