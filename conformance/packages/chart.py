"""The Helm chart, rendered by helm with several sets of values, and what Kubernetes and Penstock say of the result.

    python -m conformance.packages.chart

Each set is rendered and linted, validated against the schemas of Kubernetes, and the arguments of the broker's container
are read by Penstock's own command line: settings that a broker would refuse are found here. A broker is started with
these settings, over a directory and on ports that are free, and its probes are asked as the kubelet asks them: by the
scheme that they name, without a look at the certificate. Prometheus is played with the certificate checked. Values that
cannot work are refused by the chart with a sentence. No cluster of Kubernetes is run.
"""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

from conformance import parts
from conformance.packages.checks import Broken, held, run
from conformance.packages.wheel import UV, project
from penstock.cli.certificates import new_authority, new_certificate
from penstock.cli.start import settings
from penstock.cli.start_options import parse
from penstock.node.node import Node, StartError
from penstock.settings import Settings, SettingsError
from penstock.settings.doors import refuse_open_doors

CHART = parts.ROOT / "deploy" / "helm" / "penstock"
HELM = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBERNETES = ("1.28.0", "1.34.0")
VALIDATOR = "kubernetes-validate==1.37.0"
NAMES = {"StatefulSet": 1, "Service": 2, "PodDisruptionBudget": 1, "ServiceAccount": 1}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPEN = {"store": {"url": "s3://records/prod"}, "listener": {"insecure": True}}
SECURE = {
    "store": {
        "url": "s3://records/prod?endpoint=https://minio.example:9000&region=us-east-1&path_style=true",
        "credentialsSecret": "store-credentials",
        "env": {"AWS_REGION": "eu-central-1"},
    },
    "listener": {"protocol": "SASL_SSL"},
    "tls": {"secret": "penstock-tls", "clientAuth": "requested"},
    "sasl": {"mechanisms": ["SCRAM-SHA-512", "OAUTHBEARER"]},
    "configSecret": {"name": "penstock-logins"},
    "settings": {
        "authorizer.class.name": AUTHORIZER,
        "log.retention.ms": 604800000,
        "auto.create.topics.enable": False,
    },
    "rack": {"podLabel": "topology.kubernetes.io/zone"},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"credentials": {"name": "penstock-metrics", "key": "token"}},
    },
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/penstock"}},
    "drainSeconds": 30,
    "podAnnotations": {"example.com/team": "data"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
}
LOGIN = (
    "listener.name.{}.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule "
    'required username="broker" password="secret";\n'
    "super.users=User:broker\n"
)
TOKENS = (
    "sasl.oauthbearer.jwks.endpoint.url=file:{}\n"
    "sasl.oauthbearer.expected.audience=penstock\n"
)  # fmt: skip
ISSUER = {
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
}
"""The public key of RFC 7517."""
SERVICE = "shop-penstock.events.svc.cluster.local"
SETS: dict[str, dict[str, Any]] = {
    "one open broker": OPEN | {"replicas": 1},
    "open brokers on Google": OPEN
    | {"store": {"url": "gs://records/prod"}, "service": {"type": "LoadBalancer"}},
    "metadata in etcd": OPEN | {"metadata": "etcd://etcd-0:2379,etcd-1:2379/penstock", "firstBrokerId": 100},
    "client certificates": {
        "store": {"url": "az://records/prod?account=shop"},
        "listener": {"protocol": "SSL", "port": 9093},
        "tls": {"secret": "penstock-tls", "clientAuth": "required"},
    },
    "logins without TLS": {
        "store": {"url": "s3://records/prod"},
        "listener": {"protocol": "SASL_PLAINTEXT"},
        "configSecret": {"name": "penstock-logins"},
        "settings": {"authorizer.class.name": AUTHORIZER},
        "serviceMonitor": {"enabled": True},
    },
    "logins, rules, racks and a monitor": SECURE,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no store": ({"listener": {"insecure": True}}, "store.url is required"),
    "a store that is a directory": ({**OPEN, "store": {"url": "/data"}}, "url"),
    "an open listener that nobody asked for": ({"store": OPEN["store"]}, "listener.insecure=true"),
    "TLS that lets everybody in": (
        {"store": OPEN["store"], "listener": {"protocol": "SSL"}, "tls": {"secret": "keys"}},
        "tls.clientAuth=required",
    ),
    "passwords without TLS": (
        {
            "store": OPEN["store"],
            "listener": {"protocol": "SASL_PLAINTEXT"},
            "sasl": {"mechanisms": ["PLAIN"]},
        },
        "shows passwords",
    ),
    "TLS without keys": ({"store": OPEN["store"], "listener": {"protocol": "SSL"}}, "needs tls.secret"),
    "a value that the chart does not know": ({**OPEN, "replica": 3}, "replica"),
}


class Helm:
    def __init__(self, folder: Path) -> None:
        self._program = parts.go_tool(*HELM)
        self._folder = folder
        homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        self._environment = {**os.environ, **{name: str(folder) for name in homes}}

    def __call__(
        self, verb: str, values: Mapping[str, Any], *more: str
    ) -> "subprocess.CompletedProcess[str]":
        place = self._folder / "values.yaml"
        place.write_text(yaml.safe_dump(dict(values)))
        name = ["shop"] if verb == "template" else []
        command = [str(self._program), verb, *name, str(CHART), "--values", str(place), *more]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)


def validate(folder: Path, rendered: str, version: str) -> None:
    """Against the schemas of Kubernetes; unknown fields are errors. Kinds of operators have no schema there."""
    kept = [
        one for one in yaml.safe_load_all(rendered) if one and not one["apiVersion"].startswith("monitoring.")
    ]
    place = folder / "rendered.yaml"
    place.write_text(yaml.safe_dump_all(kept))
    command: list[str | Path] = [UV, "tool", "run", "--quiet", "--from", VALIDATOR, "kubernetes-validate"]
    run([*command, "--strict", "--kubernetes-version", version.rpartition(".")[0], place], folder)


def write_secrets(folder: Path, values: Mapping[str, Any]) -> None:
    """What the pod finds in the volumes of its secrets."""
    authority = new_authority()
    (folder / "ca.crt").write_bytes(authority[1])
    (folder / "tls-combined.pem").write_bytes(new_certificate("penstock", {SERVICE}, *authority))
    (folder / "keys.json").write_text(json.dumps({"keys": [ISSUER]}))
    text = LOGIN.format(values.get("listener", {}).get("protocol", "").lower())
    if "OAUTHBEARER" in values.get("sasl", {}).get("mechanisms", ()):
        text += TOKENS.format(folder / "keys.json")
    (folder / "server.properties").write_text(text)


def broker_settings(folder: Path, pod: dict[str, Any]) -> Settings:
    """What Penstock makes of the arguments of the first broker's container."""
    (container,) = pod["containers"]
    variables = {"POD_NAME": "shop-penstock-0", "POD_NAMESPACE": "events", "BROKER_ID": "0", "RACK": "zone-a"}
    given = {one["name"] for one in container["env"]}
    line = "\0".join(container["args"])
    for mount in container["volumeMounts"]:
        if mount["mountPath"].startswith("/etc/penstock/"):
            line = line.replace(mount["mountPath"], str(folder))
    for name, value in variables.items():
        if f"$({name})" in line and name not in given:
            raise Broken(f"an argument needs the variable {name}, which the container does not have")
        line = line.replace(f"$({name})", value)
    words = line.split("\0")
    if words[0] != "start":
        raise Broken(f"the container runs {words[0]}")
    values = parse(words[1:])
    if values is None:
        raise Broken(f"penstock start does not understand {' '.join(words)}")
    found = settings(values)
    refuse_open_doors(found, found.given)
    return found


async def check_http(folder: Path, found: list[dict[str, Any]], pod: dict[str, Any], made: Settings) -> str:
    """What a broker with these settings answers to probes, to Prometheus and to a stranger."""
    listener, _, _port = made.listeners.rpartition(":")
    here = {"store": str(folder / "store"), "metadata": "", "listeners": f"{listener}:0"}
    node = Node(Settings().with_values({**made.given, **here, "http.address": "0.0.0.0:0"}))
    await node.start()
    try:
        port = node.http_address.rpartition(":")[2]
        (container,) = pod["containers"]
        async with httpx.AsyncClient(verify=False, timeout=30) as kubelet:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container[name]["httpGet"]
                answer = await kubelet.get(f"{probe['scheme'].lower()}://127.0.0.1:{port}{probe['path']}")
                if answer.status_code != 200:
                    raise Broken(f"{name} is answered with {answer.status_code}: {answer.text}")
            scheme = probe["scheme"].lower()
            console = (await kubelet.get(f"{scheme}://127.0.0.1:{port}/topics")).status_code
        for one in found:
            if one["kind"] == "ServiceMonitor":
                await _scrape(folder, one["spec"]["endpoints"][0], port)
    finally:
        await node.kill()
    if not made.insecure_listeners_enable and console not in (303, 404):
        raise Broken(f"a stranger who asks for the console's topics gets {console}")
    shown = {303: "the console asks for a login", 404: "no console"}.get(console, "the console asks nobody")
    return f"{scheme}, {shown}"


async def _scrape(folder: Path, endpoint: dict[str, Any], port: str) -> None:
    scheme, verify, more = "http", None, {}
    if "scheme" in endpoint:
        scheme, tls = endpoint["scheme"], endpoint["tlsConfig"]
        verify = ssl.create_default_context(cafile=str(folder / tls["ca"]["secret"]["key"]))
        more = {"sni_hostname": tls["serverName"]}
    async with httpx.AsyncClient(verify=verify or True, timeout=30) as prometheus:
        answer = await prometheus.get(f"{scheme}://127.0.0.1:{port}{endpoint['path']}", extensions=more)
    if answer.status_code != 200 or "penstock_" not in answer.text:
        raise Broken(f"Prometheus is answered with {answer.status_code}")


def check_set(helm: Helm, folder: Path, name: str, values: dict[str, Any]) -> None:
    linted = helm("lint", values, "--strict", "--kube-version", KUBERNETES[-1])
    if linted.returncode:
        raise Broken(f"{name}: helm lint: {linted.stdout[-1500:]}")
    for version in KUBERNETES:
        done = helm("template", values, "--kube-version", version, "--namespace", "events")
        if done.returncode:
            raise Broken(f"{name}: {done.stderr[-1500:]}")
        validate(folder, done.stdout, version)
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    kinds = [one["kind"] for one in found]
    monitored = values.get("serviceMonitor", {}).get("enabled", False)
    wanted = NAMES | ({"ServiceMonitor": 1} if monitored else {})
    if {kind: kinds.count(kind) for kind in kinds} != wanted:
        raise Broken(f"{name}: it renders {kinds}")
    (brokers,) = (one for one in found if one["kind"] == "StatefulSet")
    pod = brokers["spec"]["template"]["spec"]
    write_secrets(folder, values)
    made = broker_settings(folder, pod)
    if made.insecure_listeners_enable != values.get("listener", {}).get("insecure", False):
        raise Broken(f"{name}: open addresses are allowed, and listener.insecure did not say so")
    grace = pod["terminationGracePeriodSeconds"]
    if grace * 1000 <= 2 * made.shutdown_drain_ms:
        raise Broken(f"{name}: a pod is killed after {grace} s, before it may have drained")
    security = pod["containers"][0]["securityContext"]
    if not (security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"]):
        raise Broken(f"{name}: the container may do more than it needs")
    if pod["securityContext"]["runAsUser"] != 65532 or not pod["securityContext"]["runAsNonRoot"]:
        raise Broken(f"{name}: the container runs as another user than the image's")
    served = asyncio.run(check_http(folder, found, pod, made))
    advertised = f"{made.advertised_listeners}"
    held(
        "shop-penstock-0.shop-penstock-headless.events.svc" in advertised,
        f"{name}: {advertised}, {served}, grace {grace} s",
    )


def check_refused(helm: Helm, name: str, values: dict[str, Any], wanted: str) -> None:
    done = helm("template", values, "--kube-version", KUBERNETES[-1])
    held(done.returncode != 0 and wanted in done.stderr, f"refused: {name}")


def prove() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    held(
        chart["version"] == chart["appVersion"] == project()["version"],
        "the chart has the version of Penstock",
    )
    with tempfile.TemporaryDirectory(prefix="conformance-chart-") as name:
        folder = Path(name)
        helm = Helm(folder)
        for title, values in SETS.items():
            with tempfile.TemporaryDirectory(dir=folder) as own:
                check_set(helm, Path(own), title, values)
        for title, (values, wanted) in REFUSED.items():
            check_refused(helm, title, values, wanted)


def main() -> int:
    try:
        prove()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (Broken, SettingsError, StartError) as why:
        print(f"FAILED: {why}")
        return 1
    print(f"{len(SETS)} sets of values render and are valid for Kubernetes {' and '.join(KUBERNETES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
