import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.zip.CRC32C;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The Java consumer as fast as it polls, by assignment, and what ProducerPerformance is known to have sent.
 *
 *   Read consume BROKER TOPIC RECORDS VALUE_BYTES WARM_RECORDS
 *   Read expected RECORDS VALUE_BYTES
 *
 * The loop is that of Kafka's ConsumerPerformance, which cannot be used where there are no groups: it subscribes.
 * The first WARM_RECORDS are read but not timed, as ProducerPerformance does with --warmup-records, because the JIT
 * compiler is at work then. ProducerPerformance draws its values from a generator with a fixed seed, so the digest of
 * what it wrote to an empty partition can be computed without it. Digests are those of franz/main.go.
 */
public final class Read {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    static long digest(CRC32C crc, int partition, long offset, byte[] value) {
        crc.reset();
        crc.update(value, 0, value.length);
        long place = ((long) partition << 48) | offset;
        return mix(place * 0x9e3779b97f4a7c15L + (((long) value.length << 32) | crc.getValue()));
    }

    private static void expected(long records, int valueBytes) {
        SplittableRandom random = new SplittableRandom(0);
        CRC32C crc = new CRC32C();
        byte[] value = new byte[valueBytes];
        long sum = 0;
        for (long offset = 0; offset < records; offset++) {
            for (int i = 0; i < valueBytes; i++) value[i] = (byte) (random.nextInt(26) + 65);
            sum += digest(crc, 0, offset, value);
        }
        System.out.printf("{\"records\": %d, \"digest\": \"%016x\"}%n", records, sum);
    }

    private static void consume(String broker, String topic, long records, int valueBytes, long warm) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", broker);
        properties.put("enable.auto.commit", "false");
        properties.put("receive.buffer.bytes", String.valueOf(2 * 1024 * 1024));
        properties.put("max.partition.fetch.bytes", String.valueOf(1024 * 1024));
        CRC32C crc = new CRC32C();
        long sum = 0;
        long seen = 0;
        long begun = 0;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            places.add(new TopicPartition(topic, 0));
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long progress = System.nanoTime();
            while (seen < records) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(100));
                if (!polled.isEmpty()) progress = System.nanoTime();
                else if (System.nanoTime() - progress > PATIENCE.toNanos()) {
                    throw new IllegalStateException("only " + seen + " records came");
                }
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    if (seen == records) break;
                    if (seen == warm) begun = System.nanoTime();
                    sum += digest(crc, record.partition(), record.offset(), record.value());
                    seen++;
                }
            }
            double seconds = (System.nanoTime() - begun) / 1e9;
            double perSecond = (records - warm) / seconds;
            System.out.printf(
                    "{\"records\": %d, \"seconds\": %.6f, \"records_per_second\": %.1f, \"megabytes_per_second\": %.3f, "
                            + "\"digest\": \"%016x\"}%n",
                    seen, seconds, perSecond, perSecond * valueBytes / 1e6, sum);
            System.out.flush();
        }
    }

    public static void main(String[] arguments) {
        if (arguments.length == 6 && arguments[0].equals("consume")) {
            consume(arguments[1], arguments[2], Long.parseLong(arguments[3]), Integer.parseInt(arguments[4]),
                    Long.parseLong(arguments[5]));
        } else if (arguments.length == 3 && arguments[0].equals("expected")) {
            expected(Long.parseLong(arguments[1]), Integer.parseInt(arguments[2]));
        } else {
            throw new IllegalArgumentException("see the head of Read.java");
        }
    }
}
