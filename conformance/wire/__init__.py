"""An independent Kafka codec, by Kafka's own message definitions and nothing of Penstock's."""
