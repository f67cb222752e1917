"""Asks brokers over the Kafka protocol where the store is. Records never pass through brokers."""

from penstock.arrow.errors import StoreAccessError
from penstock.client import AnswerError, Client, ClientError
from penstock.metadata.image import BROKER_CONFIG, ClusterImage
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

CONNECT_SECONDS = 10.0
_STORE = "store"


def find_store(bootstrap: str, security: ClientSecurity = OPEN_CLIENT) -> str:
    """The store of the cluster that a broker of this list belongs to."""
    try:
        with Client(bootstrap, CONNECT_SECONDS, security) as client:
            return ask_store(client, bootstrap)
    except ClientError as error:
        raise StoreAccessError(
            f"The store could not be learned from the brokers: {error}"
            " Set the option 'store' to read without them."
        ) from None


def ask_store(client: Client, bootstrap: str) -> str:
    brokers = client.metadata([]).brokers
    if not brokers:
        raise ClientError(f"What answers at {bootstrap} lists no brokers.")
    node = brokers[0].node_id
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=BROKER_CONFIG, resource_name=str(node), configuration_keys=[_STORE]
            )
        ]
    )
    (result,) = client.broker(node).ask(request, DescribeConfigsResponse).results
    if result.error_code:
        raise AnswerError(result.error_code, "The question for the broker's store", result.error_message)
    for config in result.configs:
        if config.name == _STORE and config.value:
            return config.value
    raise ClientError(
        f"The brokers at {bootstrap} are not Penstock's, so there is no store to read;"
        " format('kafka') reads from them."
    )


def addresses(image: ClusterImage) -> str:
    """HOST:PORT of each live broker, for a query that was given the store only."""
    return ",".join(
        f"[{listener.host}]:{listener.port}" if ":" in listener.host else f"{listener.host}:{listener.port}"
        for broker in image.live_brokers
        for listener in broker.listeners[:1]
    )
