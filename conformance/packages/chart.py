"""The Helm chart, rendered by helm with several sets of values, and what Kubernetes and Penstock say of the result.

    python -m conformance.packages.chart

Each set is rendered and linted, validated against the schemas of Kubernetes, and the arguments of the broker's container
are read by Penstock's own command line: settings that a broker would refuse are found here. Values that cannot work
are refused by the chart with a sentence. No cluster of Kubernetes is run.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from conformance import parts
from conformance.packages.checks import Broken, held, run
from conformance.packages.wheel import UV, project
from penstock.cli.start import settings
from penstock.cli.start_options import parse
from penstock.settings import Settings
from penstock.settings.doors import refuse_open_doors

CHART = parts.ROOT / "deploy" / "helm" / "penstock"
HELM = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBERNETES = ("1.28.0", "1.34.0")
VALIDATOR = "kubernetes-validate==1.37.0"
NAMES = {"StatefulSet": 1, "Service": 2, "PodDisruptionBudget": 1, "ServiceAccount": 1}
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
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "log.retention.ms": 604800000,
        "auto.create.topics.enable": False,
    },
    "rack": {"podLabel": "topology.kubernetes.io/zone"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/penstock"}},
    "drainSeconds": 30,
    "podAnnotations": {"example.com/team": "data"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
}
LOGINS = (
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule "
    'required username="broker" password="secret";\n'
    "sasl.oauthbearer.jwks.endpoint.url=https://login.example/keys\n"
    "sasl.oauthbearer.expected.audience=penstock\n"
    "super.users=User:broker\n"
)
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


def broker_settings(folder: Path, pod: dict[str, Any]) -> Settings:
    """What Penstock makes of the arguments of the first broker's container."""
    (container,) = pod["containers"]
    variables = {"POD_NAME": "shop-penstock-0", "POD_NAMESPACE": "events", "BROKER_ID": "0", "RACK": "zone-a"}
    given = {one["name"] for one in container["env"]}
    (folder / "server.properties").write_text(LOGINS)
    line = "\0".join(container["args"]).replace("/etc/penstock/config", str(folder))
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
    made = broker_settings(folder, pod)
    grace = pod["terminationGracePeriodSeconds"]
    if grace * 1000 <= 2 * made.shutdown_drain_ms:
        raise Broken(f"{name}: a pod is killed after {grace} s, before it may have drained")
    security = pod["containers"][0]["securityContext"]
    if not (security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"]):
        raise Broken(f"{name}: the container may do more than it needs")
    if pod["securityContext"]["runAsUser"] != 65532 or not pod["securityContext"]["runAsNonRoot"]:
        raise Broken(f"{name}: the container runs as another user than the image's")
    advertised = f"{made.advertised_listeners}"
    held(
        "shop-penstock-0.shop-penstock-headless.events.svc" in advertised,
        f"{name}: {advertised}, grace {grace} s",
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
            check_set(helm, folder, title, values)
        for title, (values, wanted) in REFUSED.items():
            check_refused(helm, title, values, wanted)


def main() -> int:
    try:
        prove()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except Broken as why:
        print(f"FAILED: {why}")
        return 1
    print(f"{len(SETS)} sets of values render and are valid for Kubernetes {' and '.join(KUBERNETES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
