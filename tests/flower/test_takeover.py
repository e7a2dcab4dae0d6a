"""Real processes: who holds all that a node's machine holds reaches nothing but the node's own interface.

The attacker has a node's folder: the authority, the node's certificate, its keys. It speaks to the federation's port by
Flower's own client, which is given the certificate, and by raw requests. The operator, on the server, sees what came of
it through the SuperLink's own port.
"""

import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from experiments.trust.network_faults import PATIENCE, until
from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest, UnregisterNodeFleetRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from machines import Machines, free_ports
from proxies import EXPERIMENT

from fedstrata.base.files import folder_lock
from fedstrata.flower import deploy

pytestmark = [
    pytest.mark.deploy,
    # Flower's own packing of an app calls what its libraries have deprecated.
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


class Attacked(NamedTuple):
    """A federation of one node whose run goes on for as long as its device is held."""

    port: int
    machines: Machines
    node: Path
    operator: ControlHttpClient
    attacker: ssl.SSLContext
    run: int
    held: ExitStack
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def stands(self) -> bool:
        """Whether the run goes on with the node that it had."""
        runs = self.operator.ListRuns(ListRunsRequest()).run_dict
        (node,) = self.operator.ListNodes(ListNodesRequest()).nodes_info
        return len(runs) == 1 and self.process.poll() is None and (node.name, node.status) == ("site-0", "online")


def context_of(authority: Path, node: Path | None = None) -> ssl.SSLContext:
    """What somebody needs who trusts an authority and has what a node has."""
    context = ssl.create_default_context(cafile=str(authority))
    if node is not None:
        context.load_cert_chain(node / "tls.crt", node / "tls.key")
    return context


def control(url: str, context: ssl.SSLContext) -> ControlHttpClient:
    return ControlHttpClient(url, interceptors=[RuntimeVersionHttpInterceptor("flwr-cli")], verify=context)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder, port = tmp_path_factory.mktemp("takeover") / "federation", free_ports(4)
    deploy.init(folder, EXPERIMENT, port=port)
    node, out, log = folder / "nodes/site-0", folder.parent / "real", folder.parent / "run.log"
    connection = tomllib.loads((folder / "cli/config.toml").read_text())["superlink"]["here"]
    operator = control(f"https://{connection['address']}", context_of(folder / "certificates/ca.crt"))
    command = [sys.executable, "-m", "fedstrata", "deploy", "run", str(folder / "experiment.toml")]
    command += ["--federation", str(folder), "--out", str(out)]
    with Machines(folder, port) as machines, ExitStack() as held, log.open("wb") as room:
        machines.server()
        machines.register()
        machines.node("site-0")
        held.enter_context(folder_lock(node / "state", wait=lambda: None))
        process = subprocess.Popen(command, stdout=room, stderr=room)
        try:
            # The node has been asked for its first round, and works when its folder is free.
            until(lambda: "ROUND 1]" in machines.log("site-0").read_text() or process.poll() is not None)
            (run,) = operator.ListRuns(ListRunsRequest()).run_dict
            attacker = context_of(node / "ca.crt", node)
            yield Attacked(port, machines, node, operator, attacker, run, held, process)
        finally:
            process.kill()
            process.wait()
            operator.close()


FOREIGN = """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()], timeout=60)
"""
"""The server's part of an app that has every node fetch it."""


def start_of(app: bytes) -> StartRunRequest:
    return StartRunRequest(fab=Fab(hash_str=hashlib.sha256(app).hexdigest(), content=app))


def new_key() -> bytes:
    return public_key_to_bytes(generate_key_pairs()[1])


STEPS: dict[str, Callable[[ControlHttpClient, Attacked], object]] = {
    "list runs": lambda client, here: client.ListRuns(ListRunsRequest()),
    "list nodes": lambda client, here: client.ListNodes(ListNodesRequest()),
    "log": lambda client, here: next(iter(client.StreamLogs(StreamLogsRequest(run_id=here.run)))),
    "register": lambda client, here: client.RegisterNode(RegisterNodeRequest(public_key=new_key(), name="site-1")),
    "foreign app": lambda client, here: client.StartRun(start_of(b"an app")),
    "unregister": lambda client, here: client.UnregisterNode(
        UnregisterNodeRequest(node_id=here.operator.ListNodes(ListNodesRequest()).nodes_info[0].node_id)
    ),
    "stop": lambda client, here: client.StopRun(StopRunRequest(run_id=here.run)),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_node_may_not_do_what_the_operator_does(attacked: Attacked, step: str) -> None:
    assert attacked.stands()
    with control(attacked.url, attacked.attacker) as client, pytest.raises(httpx.HTTPStatusError) as refused:
        STEPS[step](client, attacked)
    assert refused.value.response.status_code == 404
    assert refused.value.response.headers["server"] == "nginx", "the proxy itself must refuse it"
    assert attacked.stands()


def test_a_node_may_not_take_a_registration_of_another(attacked: Attacked) -> None:
    """A key that the operator has not registered is none, with whatever certificate it comes."""
    private, public = generate_key_pairs()
    own: list[Any] = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(private, public)]
    key = public_key_to_bytes(public)
    victim = attacked.operator.ListNodes(ListNodesRequest()).nodes_info[0].node_id
    with FleetHttpClient(attacked.url, interceptors=own, verify=attacked.attacker) as fleet:
        for call in (
            lambda: fleet.RegisterNode(RegisterNodeFleetRequest(public_key=key)),
            lambda: fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=victim)),
            lambda: fleet.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30.0)),
        ):
            with pytest.raises(httpx.HTTPStatusError):
                call()
    assert attacked.stands()


def posted(attacked: Attacked, method: str, content: bytes, context: ssl.SSLContext) -> tuple[int, str]:
    """The status of the answer of the proxy itself to a call of the nodes' interface, and its text."""
    with httpx.Client(verify=context) as client:
        found = client.post(f"{attacked.url}/v1/fleet/{method}", content=content)
    assert found.headers["server"] == "nginx"
    return found.status_code, found.text


def test_somebody_without_a_nodes_certificate_may_not_even_ask(attacked: Attacked) -> None:
    status, said = posted(attacked, "pull-messages", b"", context_of(attacked.node / "ca.crt"))
    assert status == 400 and "No required SSL certificate was sent" in said


TARGETS = (
    "POST /v1/control/list-runs HTTP/1.1",
    "POST /v1/runtime/acquire-task HTTP/1.1",
    "POST /flwr.proto.Control/ListRuns HTTP/1.1",
    "POST /flwr.proto.Fleet/../flwr.proto.Control/ListRuns HTTP/1.1",
    "POST /v1/fleet/../control/list-runs HTTP/1.1",
    "POST /v1/fleet/%2e%2e/control/list-runs HTTP/1.1",
    "POST /v1/fleet/..%2fcontrol%2flist-runs HTTP/1.1",
    "POST /v1/fleet/..;/control/list-runs HTTP/1.1",
    "POST /v1/fleet//../control/list-runs HTTP/1.1",
    "POST //v1//control//list-runs HTTP/1.1",
    "POST /V1/CONTROL/LIST-RUNS HTTP/1.1",
    "POST /v1/control/list-runs?/v1/fleet/pull-messages HTTP/1.1",
    "POST /v1/fleet/pull-messages/../../control/list-runs HTTP/1.1",
    "POST /v1/control/list-runs%00/v1/fleet/pull-messages HTTP/1.1",
    "POST /v1/control/list-runs%0d%0a/v1/fleet/pull-messages HTTP/1.1",
    "POST https://127.0.0.1/v1/control/list-runs HTTP/1.1",
    "POST https://127.0.0.1/v1/fleet/../control/list-runs HTTP/1.1",
    "POST /v1/control/list-runs HTTP/1.0",
    "POST \\v1\\control\\list-runs HTTP/1.1",
    "GET /docs HTTP/1.1",
    "GET /openapi.json HTTP/1.1",
    "GET /health HTTP/1.1",
    "GET /v1/fleet/pull-messages HTTP/1.1",
    "CONNECT 127.0.0.1:22 HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "TRACE / HTTP/1.1",
    "PRI * HTTP/2.0",
)


def test_a_node_may_not_reach_another_interface_by_any_spelling_of_its_path(attacked: Attacked) -> None:
    before = attacked.machines.log("superlink").read_text()
    body = ListRunsRequest().SerializeToString()
    for target in TARGETS:
        head = f"{target}\r\nHost: 127.0.0.1\r\nContent-Type: application/protobuf\r\nContent-Length: {len(body)}\r\n"
        status = raw(attacked, f"{head}Connection: close\r\n\r\n".encode() + body)
        assert 400 <= status < 500, (target, status)
    assert "ControlServicer" not in attacked.machines.log("superlink").read_text()[len(before) :]
    assert attacked.stands()


def raw(attacked: Attacked, request: bytes) -> int:
    """The status of the answer to a request as it stands."""
    with (
        socket.create_connection(("127.0.0.1", attacked.port), PATIENCE) as plain,
        attacked.attacker.wrap_socket(plain, server_hostname="localhost") as channel,
    ):
        channel.sendall(request)
        answer = channel.recv(4096)
    return int(answer.split(b" ", 2)[1])


def test_a_node_may_not_speak_http_2_to_get_by(attacked: Attacked) -> None:
    context = context_of(attacked.node / "ca.crt", attacked.node)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", attacked.port), PATIENCE) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"),
        context.wrap_socket(plain, server_hostname="localhost"),
    ):
        pass


def test_a_node_may_not_send_more_than_a_reply_about_the_model_has(attacked: Attacked) -> None:
    for method, size in (("push-messages", 2**20), ("push-object", 8 * 2**20)):
        assert posted(attacked, method, bytes(size), attacked.attacker)[0] == 413


def test_a_node_may_not_be_made_to_run_another_app(attacked: Attacked, tmp_path: Path) -> None:
    """Even by somebody on the server itself, once the run is over."""
    attacked.held.close()
    assert attacked.process.wait(PATIENCE) == 0, "the run that was attacked did not finish"
    log = attacked.machines.log("site-0")
    home = attacked.node.parents[1]
    app = Path(shutil.copytree(home / "app", tmp_path / "app"))
    (app / "foreign.py").write_text(FOREIGN)
    described = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(described.replace("fedstrata.flower.server_app:server_app", "foreign:app"))
    attacked.operator.StartRun(start_of(build_fab_from_disk(app)))
    until(lambda: "Ignoring message" in log.read_text())
    kept = (attacked.node / "home/apps").glob("*")
    assert len(list(kept)) == 1, "of the other app nothing has come to the node"
    summary = json.loads((home.parent / "real/summary.json").read_text())
    assert summary["rounds"] == 1
