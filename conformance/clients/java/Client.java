import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client behind the line protocol of conformance/clients/protocol.py. */
public final class Client {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader commands =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private final Map<String, Object> common;
    private final Transactions transactions;
    private KafkaProducer<byte[], byte[]> flooder;

    private Client(Map<String, Object> common) {
        this.common = common;
        this.transactions = new Transactions(common);
    }

    /** The name of the error that is behind the others. */
    private static String kind(Throwable error) {
        boolean wraps = error instanceof java.util.concurrent.ExecutionException && error.getCause() != null;
        return wraps ? kind(error.getCause()) : error.getClass().getSimpleName();
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> common = new HashMap<>(Map.of("bootstrap.servers", arguments[1]));
        if (arguments.length > 2) {
            common.putAll(security(JSON.readTree(Path.of(arguments[3]).toFile())));
        }
        Client client = new Client(common);
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                client.answer(JSON.readTree(line), answer);
            } catch (Exception error) {
                error.printStackTrace();
                answer.removeAll();
                answer.put("error", error.toString());
                answer.put("kind", kind(error));
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    /** See conformance/clients/secured.py. Tokens are read only from files that are named. */
    private static Map<String, Object> security(JsonNode given) {
        if (given.has("tokens")) {
            String file = given.get("tokens").asText();
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", "file://" + file);
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", file);
        }
        return JSON.convertValue(given.get("java"), new TypeReference<Map<String, Object>>() {});
    }

    private void answer(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "create" -> create(command);
            case "produce" -> produce(command, answer);
            case "flood" -> flood(command, answer);
            case "consume" -> consume(command, answer);
            case "group" -> new Membership(command, consumerSettings()).group(answer);
            case "member" -> new Membership(command, consumerSettings()).member(commands);
            case "link" -> new Link(command, common).run(commands);
            case "open", "begin", "send", "offsets", "commit", "abort", "close" -> transactions.step(command, answer);
            default -> throw new IllegalArgumentException("no such command");
        }
    }

    private void create(JsonNode command) throws Exception {
        try (Admin admin = Admin.create(common)) {
            NewTopic topic = new NewTopic(command.get("topic").asText(), command.get("partitions").asInt(), (short) 1);
            admin.createTopics(List.of(topic)).all().get(30, TimeUnit.SECONDS);
        }
    }

    private void produce(JsonNode command, ObjectNode answer) throws Exception {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("compression.type", command.get("codec").asText());
        settings.put("acks", "all");
        settings.put("linger.ms", "50");
        ArrayNode offsets = answer.putArray("offsets");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> waiting = new ArrayList<>();
            for (JsonNode record : command.get("records")) {
                waiting.add(producer.send(parse(command, record)));
            }
            for (Future<RecordMetadata> future : waiting) {
                offsets.add(future.get(30, TimeUnit.SECONDS).offset());
            }
        }
    }

    /** Comes back soon after the broker does; idempotence is the default. */
    private void flood(JsonNode command, ObjectNode answer) throws Exception {
        if (flooder == null) {
            Map<String, Object> settings = new HashMap<>(common);
            settings.put("acks", "all");
            settings.put("linger.ms", "2");
            settings.put("reconnect.backoff.ms", "10");
            settings.put("reconnect.backoff.max.ms", "100");
            settings.put("retry.backoff.ms", "20");
            flooder = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        }
        List<Future<RecordMetadata>> waiting = new ArrayList<>();
        for (JsonNode record : command.get("records")) {
            int partition = record.get("partition").asInt();
            waiting.add(flooder.send(new ProducerRecord<>(
                command.get("topic").asText(), partition, bytes(record.get("key")), bytes(record.get("value")))));
        }
        ArrayNode offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> future : waiting) {
            offsets.add(future.get(90, TimeUnit.SECONDS).offset());
        }
    }

    private static ProducerRecord<byte[], byte[]> parse(JsonNode command, JsonNode record) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
        return new ProducerRecord<>(command.get("topic").asText(), command.get("partition").asInt(), timestamp,
            bytes(record.get("key")), bytes(record.get("value")), headers);
    }

    private void consume(JsonNode command, ObjectNode answer) {
        Map<String, Object> settings = consumerSettings();
        settings.put("auto.offset.reset", "none");
        settings.put("isolation.level", command.path("committed").asBoolean() ? "read_committed" : "read_uncommitted");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition assigned = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
            consumer.assign(List.of(assigned));
            consumer.seek(assigned, command.get("offset").asLong());
            poll(consumer, command, answer.putArray("records"));
        }
    }

    private Map<String, Object> consumerSettings() {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("enable.auto.commit", "false");
        return settings;
    }

    /** Reads up to the wanted count and gives the next offset of each partition that was read. */
    private static Map<Integer, Long> poll(KafkaConsumer<byte[], byte[]> consumer, JsonNode command, ArrayNode records) {
        int count = command.get("count").asInt();
        Map<Integer, Long> next = new TreeMap<>();
        long deadline = System.nanoTime() + (long) (command.get("timeout_s").asDouble() * 1e9);
        while (records.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                if (records.size() < count) {
                    records.add(render(record));
                    next.put(record.partition(), record.offset() + 1);
                }
            }
        }
        return next;
    }

    static ObjectNode render(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("key", text(record.key()));
        node.put("value", text(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        node.put("timestamp", record.timestamp());
        node.put("offset", record.offset());
        node.put("partition", record.partition());
        return node;
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
