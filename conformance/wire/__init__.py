"""An independent Kafka codec: requests and answers by Kafka's own message definitions, nothing of Penstock's."""
