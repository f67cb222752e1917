import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java consumer as a member of a group: the commands "group" and "member". */
final class Membership {
    /** As in voice.py. */
    private static final Duration POLL = Duration.ofMillis(200);

    private final JsonNode command;
    private final String topic;
    private final Map<String, Object> settings;
    private final Map<Integer, Long> pending = new HashMap<>();

    Membership(JsonNode command, Map<String, Object> settings) {
        this.command = command;
        this.topic = command.get("topic").asText();
        this.settings = settings;
        settings.put("auto.offset.reset", "earliest");
        settings.put("group.id", command.get("group").asText());
        switch (command.get("variant").asText()) {
            case "classic", "static" -> settings.put("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.RangeAssignor");
            case "cooperative" -> settings.put("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            case "consumer" -> settings.put("group.protocol", "consumer");
            default -> throw new IllegalArgumentException("no such variant");
        }
    }

    void group(ObjectNode answer) {
        if (command.get("variant").asText().equals("static")) {
            settings.put("group.instance.id", command.get("group").asText() + "-one");
            settings.put("session.timeout.ms", "120000");
        }
        int count = command.get("count").asInt();
        int each = command.get("each").asInt();
        ArrayNode records = answer.putArray("records");
        Map<Integer, Long> next = new TreeMap<>();
        Map<Integer, Integer> taken = new HashMap<>();
        long deadline = System.nanoTime() + (long) (command.get("timeout_s").asDouble() * 1e9);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (records.size() < count && taken.getOrDefault(record.partition(), 0) < each) {
                        taken.merge(record.partition(), 1, Integer::sum);
                        records.add(Client.render(record));
                        next.put(record.partition(), record.offset() + 1);
                    }
                }
            }
            consumer.commitSync(offsets(next));
        }
        ObjectNode committed = answer.putObject("committed");
        next.forEach((partition, offset) -> committed.put(String.valueOf(partition), offset));
    }

    /** Rebalances happen inside poll. */
    void member(BufferedReader orders) throws IOException {
        settings.put("max.poll.interval.ms", "60000");
        settings.put("fetch.max.wait.ms", "200");
        if (!settings.containsKey("group.protocol")) { // with the new protocol the broker's settings decide
            settings.put("session.timeout.ms", "15000");
            settings.put("heartbeat.interval.ms", "500");
        }
        if (!command.get("instance").isNull()) {
            settings.put("group.instance.id", command.get("instance").asText());
        }
        AtomicBoolean leave = new AtomicBoolean();
        Thread listener = new Thread(() -> {
            try {
                orders.readLine();
            } catch (IOException ended) {
                // The end of the input is an order to leave, too.
            }
            leave.set(true);
        });
        listener.setDaemon(true);
        listener.start();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic), new Announcer(consumer));
            while (!leave.get()) {
                consumeOnce(consumer);
            }
        }
    }

    private void consumeOnce(KafkaConsumer<byte[], byte[]> consumer) {
        ConsumerRecords<byte[], byte[]> polled = consumer.poll(POLL);
        for (TopicPartition partition : polled.partitions()) {
            ObjectNode event = Client.JSON.createObjectNode();
            event.put("partition", partition.partition());
            ArrayNode offsets = event.putArray("offsets");
            for (ConsumerRecord<byte[], byte[]> record : polled.records(partition)) {
                offsets.add(record.offset());
                pending.put(partition.partition(), record.offset() + 1);
            }
            say("consumed", event);
        }
        commit(consumer);
    }

    /** What the broker refuses while the group rebalances is committed after the next poll. */
    private void commit(KafkaConsumer<byte[], byte[]> consumer) {
        if (pending.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(offsets(pending));
            pending.clear();
        } catch (RebalanceInProgressException later) {
            // Kept.
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets(Map<Integer, Long> next) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        next.forEach((partition, offset) ->
            offsets.put(new TopicPartition(topic, partition), new OffsetAndMetadata(offset)));
        return offsets;
    }

    private static synchronized void say(String name, ObjectNode event) {
        Instant now = Instant.now();
        event.put("event", name);
        event.put("at", now.getEpochSecond() * 1e3 + now.getNano() / 1e6);
        System.out.println(event);
        System.out.flush();
    }

    private final class Announcer implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;

        Announcer(KafkaConsumer<byte[], byte[]> consumer) {
            this.consumer = consumer;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            announce("assigned", assigned);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            commit(consumer);
            revoked.forEach(each -> pending.remove(each.partition()));
            announce("revoked", revoked);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> lost) {
            lost.forEach(each -> pending.remove(each.partition()));
            announce("lost", lost);
        }

        private void announce(String name, Collection<TopicPartition> partitions) {
            ObjectNode event = Client.JSON.createObjectNode();
            ArrayNode numbers = event.putArray("partitions");
            partitions.stream().map(TopicPartition::partition).sorted().forEach(numbers::add);
            say(name, event);
        }
    }
}
