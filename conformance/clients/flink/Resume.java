import java.time.Duration;
import java.util.Properties;
import org.apache.flink.connector.kafka.sink.internal.FlinkKafkaInternalProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What Flink's sink does over a failure: one producer writes and is gone, another resumes its transaction from the id
 * and the epoch in the checkpoint, and commits it; and, as after a second failure, once more.
 */
public final class Resume {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("transaction.timeout.ms", "600000");
        settings.put("max.block.ms", "30000");
        String topic = arguments[1];
        String id = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        long producer;
        short epoch;
        var first = new FlinkKafkaInternalProducer<byte[], byte[]>(settings, id);
        first.initTransactions();
        first.beginTransaction();
        for (int number = 0; number < count; number++) {
            first.send(new ProducerRecord<>(topic, number % 2, null, ("resumed " + number).getBytes()), null);
        }
        first.flush();
        first.precommitTransaction();
        producer = first.getProducerId();
        epoch = first.getEpoch();
        first.close(Duration.ZERO);
        System.out.println("left " + producer + " " + epoch);
        System.out.println("first: " + commit(settings, id, producer, epoch));
        System.out.println("again: " + commit(settings, id, producer, epoch));
    }

    private static String commit(Properties settings, String id, long producer, short epoch) {
        try (var other = new FlinkKafkaInternalProducer<byte[], byte[]>(settings, id)) {
            other.resumeTransaction(producer, epoch);
            other.commitTransaction();
            return "committed";
        } catch (Exception refused) {
            return refused.getClass().getSimpleName();
        }
    }
}
