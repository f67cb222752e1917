"""`/doctor`: what is wrong with the cluster, in plain words, when somebody asks."""

from __future__ import annotations

import time

from starlette.responses import Response

from penstock.admin.doctor.check_up import check_up
from penstock.admin.doctor.checks import CHECKS
from penstock.admin.doctor.questions import text
from penstock.console.reports import keep, kept
from penstock.console.visit import Visit, page


@page("/doctor")
def doctor(visit: Visit) -> Response:
    found = kept(visit.cluster, "doctor")
    brokers, findings = found.report if found is not None else ([], [])
    problems: dict[str, list[str]] = {check: [] for check in CHECKS}
    for finding in findings:
        problems[finding.check].append(finding.problem)
    return visit.render(
        "doctor.html",
        found=found,
        brokers=[text(one) for one in brokers],
        problems=problems,
        wrong=sum(map(bool, problems.values())),
    )


@page("/doctor", method="POST")
def examine(visit: Visit) -> Response:
    began = time.monotonic()
    brokers, findings = check_up(visit.cluster.bootstrap, visit.cluster.security)
    keep(visit.cluster, "doctor", (brokers, findings), began)
    wrong = len({finding.check for finding in findings})
    sentence = f"{wrong} of {len(CHECKS)} checks found something." if wrong else "All checks are well."
    return visit.done("/doctor", sentence)
