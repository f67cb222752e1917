import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The steps of a transaction, by one Java producer that outlives commands. */
final class Transactions {
    private final Map<String, Object> common;
    private KafkaProducer<byte[], byte[]> producer;

    Transactions(Map<String, Object> common) {
        this.common = common;
    }

    void step(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "open" -> open(command);
            case "begin" -> producer.beginTransaction();
            case "send" -> send(command, answer);
            case "offsets" -> offsets(command);
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(Duration.ofSeconds(5));
            default -> throw new IllegalArgumentException("no such step");
        }
    }

    private void open(JsonNode command) {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("transactional.id", command.get("id").asText());
        settings.put("transaction.timeout.ms", command.get("timeout_ms").asInt());
        settings.put("linger.ms", "5");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
    }

    private void send(JsonNode command, ObjectNode answer) throws Exception {
        List<Future<RecordMetadata>> waiting = new ArrayList<>();
        for (JsonNode record : command.get("records")) {
            waiting.add(producer.send(new ProducerRecord<>(
                command.get("topic").asText(), record.get("partition").asInt(), null, Client.bytes(record.get("value")))));
        }
        producer.flush();
        ArrayNode offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> future : waiting) {
            offsets.add(future.get(60, TimeUnit.SECONDS).offset());
        }
    }

    private void offsets(JsonNode command) {
        Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>();
        command.get("offsets").fields().forEachRemaining(one -> committed.put(
            new TopicPartition(command.get("topic").asText(), Integer.parseInt(one.getKey())),
            new OffsetAndMetadata(one.getValue().asLong())));
        producer.sendOffsetsToTransaction(committed, new ConsumerGroupMetadata(command.get("group").asText()));
    }
}
