"""Notices that a machine is to be taken away: asked of the metadata service of its cloud. Needs no PyTorch.

    cloud   gives           asked for
    aws     120 s           /latest/meta-data/spot/instance-action, with a token (IMDSv2)
    gcp      30 s           /computeMetadata/v1/instance/preempted
    azure    30 s or more   /metadata/scheduledevents, events of type Preempt or Terminate

SLURM (`--signal=TERM@120`), Kubernetes and most others send SIGTERM, which is a notice too. What is asked for is in the
providers' documentation as of November 2026.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from shardwright.errors import bad
from shardwright.records import record
from shardwright.runtime.recovery.run import Service

POLL_SECONDS, ANSWER_SECONDS = 2.0, 2.0
AWS_TOKEN_SECONDS = 300
GCP_SECONDS = AZURE_SECONDS = 30.0
AWS_SECONDS = 120.0


@record
class Notice:
    """Who says that this machine is taken away, and in how many seconds."""

    source: str
    seconds: float


def service_of(text: str) -> Service:
    """Return the service of CLOUD or CLOUD=URL. Raises SpecError for another cloud."""
    cloud, _, url = text.partition("=")
    if cloud not in CLOUDS:
        raise bad(f"notices={text}", "is no known cloud", f"one of {', '.join(CLOUDS)}")
    return Service(cloud=cloud, url=(url or CLOUDS[cloud][0]).rstrip("/"))


async def watch(service: Service, tell: Callable[[Notice], Awaitable[None]]) -> None:
    """Ask a service until there is a notice, and tell it. A service that does not answer is asked again."""
    while True:
        try:
            notice = await asyncio.to_thread(ask, service)
        except (OSError, ValueError, KeyError):
            notice = None
        if notice is not None:
            await tell(notice)
            return
        await asyncio.sleep(POLL_SECONDS)


def ask(service: Service) -> Notice | None:
    """Return the notice that a service has. Raises OSError where it cannot be reached, ValueError or KeyError where it
    does not answer as its cloud does."""
    return CLOUDS[service.cloud][1](service.url)


def _aws(url: str) -> Notice | None:
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_SECONDS)}
    token = _got(f"{url}/latest/api/token", ttl, method="PUT")
    answer = _got(f"{url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""})
    if answer is None:
        return None
    action = json.loads(answer)
    when = datetime.fromisoformat(action["time"].replace("Z", "+00:00"))
    return Notice(source=f"aws: {action['action']}", seconds=_left(when, AWS_SECONDS))


def _gcp(url: str) -> Notice | None:
    answer = _got(f"{url}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return Notice(source="gcp: preempted", seconds=GCP_SECONDS) if (answer or "").strip() == "TRUE" else None


def _azure(url: str) -> Notice | None:
    answer = _got(f"{url}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    for event in json.loads(answer or "{}").get("Events", ()):
        if event["EventType"] in ("Preempt", "Terminate"):
            seconds = AZURE_SECONDS
            if event.get("NotBefore"):
                seconds = _left(parsedate_to_datetime(event["NotBefore"]), AZURE_SECONDS)
            return Notice(source=f"azure: {event['EventType']}", seconds=seconds)
    return None


CLOUDS: Mapping[str, tuple[str, Callable[[str], Notice | None]]] = {
    "aws": ("http://169.254.169.254", _aws),
    "gcp": ("http://metadata.google.internal", _gcp),
    "azure": ("http://169.254.169.254", _azure),
}


def _got(url: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """Return what a service answers, None where it has no such thing. Proxies are not used."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def _left(when: datetime, most: float) -> float:
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((aware - datetime.now(UTC)).total_seconds(), 0.0), most)
