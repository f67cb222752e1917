import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The link of a chain: consumes, transforms and produces in transactions, as a member of a group. */
final class Link {
    /** As in voice.py. */
    private static final Duration POLL = Duration.ofMillis(200);

    private final JsonNode command;
    private final String input;
    private final String name;
    private final KafkaProducer<byte[], byte[]> producer;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private int number = 0;

    Link(JsonNode command, Map<String, Object> common) {
        this.command = command;
        this.input = command.get("input").asText();
        this.name = command.get("name").asText();
        Map<String, Object> producing = brisk(common);
        producing.put("transactional.id", command.get("id").asText());
        producing.put("transaction.timeout.ms", command.get("timeout_ms").asInt());
        producing.put("linger.ms", "0");
        producing.put("delivery.timeout.ms", "60000");
        producer = new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer());
        Map<String, Object> consuming = brisk(common);
        consuming.put("group.id", command.get("group").asText());
        consuming.put("enable.auto.commit", "false");
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("isolation.level", "read_committed");
        consuming.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        consuming.put("session.timeout.ms", "15000");
        consuming.put("heartbeat.interval.ms", "500");
        consuming.put("fetch.max.wait.ms", "200");
        consuming.put("max.poll.records", command.get("batch").asText());
        consumer = new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Comes back soon after a broker does. */
    private static Map<String, Object> brisk(Map<String, Object> common) {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "250");
        settings.put("retry.backoff.ms", "20");
        settings.put("request.timeout.ms", "10000");
        return settings;
    }

    /** Until told to leave. A fatal error ends it: whoever runs it starts another. */
    void run(BufferedReader orders) {
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
        try (producer; consumer) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            say("ready", name, Client.JSON.createObjectNode());
            while (!leave.get()) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(POLL);
                if (!polled.isEmpty()) {
                    transact(polled);
                }
            }
        }
    }

    /** One transaction; after an abort the same records are consumed again. */
    private void transact(ConsumerRecords<byte[], byte[]> polled) {
        number++;
        String transaction = name + "." + number;
        Map<TopicPartition, Long> starts = new HashMap<>();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        List<ProducerRecord<byte[], byte[]>> outgoing = plan(polled, transaction, starts, ends);
        int every = command.get("abort_every").asInt();
        boolean toAbort = every > 0 && number % every == 0;
        boolean asked = false;
        String why = "";
        String outcome = toAbort ? "aborted" : "committed";
        try {
            producer.beginTransaction();
            outgoing.forEach(producer::send);
            producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
            if (toAbort) {
                producer.abortTransaction();
            } else {
                producer.flush();
                say("asked", transaction, Client.JSON.createObjectNode());
                asked = true;
                commit();
            }
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException | FencedInstanceIdException
            | UnsupportedVersionException | InvalidPidMappingException | InvalidTxnStateException fatal) {
            ended(transaction, asked ? "unknown" : "aborted", fatal.toString());
            throw fatal;
        } catch (KafkaException refused) {
            why = cause(refused);
            try {
                producer.abortTransaction();
            } catch (KafkaException fatal) {
                ended(transaction, asked ? "unknown" : "aborted", cause(fatal));
                throw fatal;
            }
            outcome = "aborted";
        }
        ended(transaction, outcome, why);
        if (outcome.equals("aborted")) {
            starts.forEach((partition, offset) -> {
                if (consumer.assignment().contains(partition)) {
                    consumer.seek(partition, offset);
                }
            });
        }
    }

    /** The error that is behind the others, and its last words. */
    private static String cause(Throwable error) {
        return error.getCause() == null ? error.toString() : cause(error.getCause());
    }

    /** A time-out leaves the outcome open; the same call goes on waiting. */
    private void commit() {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException late) {
                // Again.
            }
        }
    }

    private List<ProducerRecord<byte[], byte[]>> plan(ConsumerRecords<byte[], byte[]> polled, String transaction,
        Map<TopicPartition, Long> starts, Map<TopicPartition, OffsetAndMetadata> ends) {
        List<ProducerRecord<byte[], byte[]>> outgoing = new ArrayList<>();
        ObjectNode told = Client.JSON.createObjectNode();
        ArrayNode appends = told.putArray("appends");
        for (ConsumerRecord<byte[], byte[]> record : polled) {
            TopicPartition from = new TopicPartition(input, record.partition());
            starts.putIfAbsent(from, record.offset());
            ends.put(from, new OffsetAndMetadata(record.offset() + 1));
            String value = new String(record.value(), StandardCharsets.UTF_8);
            int turn = 0;
            for (JsonNode output : command.get("outputs")) {
                int partition = turn == 0 ? record.partition() : (int) (record.offset() % command.get("partitions").asInt());
                String made = value + "|" + transaction + "." + turn;
                appends.addArray().add(output.asText() + "-" + partition).add(made);
                outgoing.add(new ProducerRecord<>(output.asText(), partition, null, made.getBytes(StandardCharsets.UTF_8)));
                turn++;
            }
        }
        ArrayNode moves = told.putArray("moves");
        ends.forEach((from, end) ->
            moves.addArray().add(from.toString()).add(starts.get(from)).add(end.offset()));
        say("begin", transaction, told);
        return outgoing;
    }

    private static void ended(String transaction, String outcome, String why) {
        say("ended", transaction, Client.JSON.createObjectNode().put("outcome", outcome).put("why", why));
    }

    private static void say(String event, String name, ObjectNode details) {
        Instant now = Instant.now();
        details.put("event", event).put("name", name).put("at", now.getEpochSecond() + now.getNano() / 1e9);
        System.out.println(details);
        System.out.flush();
    }
}
