import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.concurrent.Future;
import java.util.zip.CRC32C;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java producer, one transaction after the other, each with one record to each partition; its defaults.
 *
 *   Transact BROKER TOPIC PARTITIONS SECONDS VALUE_BYTES
 *
 * Half of SECONDS is run before it is timed. What it gives a second is transactions, as in franz/transact.go.
 */
public final class Transact {
    private static final SplittableRandom RANDOM = new SplittableRandom();
    private static long records;
    private static long sum;

    private static void once(KafkaProducer<byte[], byte[]> producer, String topic, int partitions, int valueBytes)
            throws Exception {
        List<byte[]> values = new ArrayList<>();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++) {
            byte[] value = new byte[valueBytes];
            RANDOM.nextBytes(value);
            values.add(value);
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, value)));
        }
        producer.commitTransaction();
        CRC32C crc = new CRC32C();
        for (int partition = 0; partition < partitions; partition++) {
            sum += Read.digest(crc, partition, sent.get(partition).get().offset(), values.get(partition));
        }
        records += partitions;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        int valueBytes = Integer.parseInt(arguments[4]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", "bench-" + System.nanoTime());
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            long warm = System.nanoTime() + (long) (seconds / 2 * 1e9);
            do once(producer, topic, partitions, valueBytes); while (System.nanoTime() < warm);
            long transactions = 0;
            long begun = System.nanoTime();
            for (long end = begun + (long) (seconds * 1e9); System.nanoTime() < end; transactions++) {
                once(producer, topic, partitions, valueBytes);
            }
            double took = (System.nanoTime() - begun) / 1e9;
            double perSecond = transactions / took;
            System.out.printf(
                    "{\"records\": %d, \"seconds\": %.6f, \"records_per_second\": %.1f, \"megabytes_per_second\": %.3f, "
                            + "\"digest\": \"%016x\"}%n",
                    records, took, perSecond, perSecond * partitions * valueBytes / 1e6, sum);
            System.out.flush();
        }
    }
}
