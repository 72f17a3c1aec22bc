package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads one partition of a topic from its beginning to its end, by Kafka's own consumer. */
final class Consumers {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final long DEADLINE_NANOS = 180_000_000_000L;

    private Consumers() {}

    /** Returns every record up to the end that the isolation level in {@code config} allows. */
    static JsonNode consume(JsonNode question) {
        Properties properties = new Properties();
        question.get("config").properties().forEach(
            entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        TopicPartition partition = new TopicPartition(
            question.get("topic").asText(), question.path("partition").asInt(0));
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, deserializer, deserializer)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            return readUpTo(consumer, partition, end);
        }
    }

    private static ArrayNode readUpTo(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long end) {
        ArrayNode found = Oracle.JSON.createArrayNode();
        long begun = System.nanoTime();
        // The position also moves past offsets without a record: markers, aborted records, gaps.
        while (consumer.position(partition) < end) {
            if (System.nanoTime() - begun > DEADLINE_NANOS) {
                throw new IllegalStateException("no end after three minutes: " + found.size());
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                describe(found.addObject(), record);
            }
        }
        return found;
    }

    private static void describe(ObjectNode line, ConsumerRecord<byte[], byte[]> record) {
        line.put("offset", record.offset());
        line.put("timestamp", record.timestamp());
        line.put("timestamp_type", record.timestampType().name);
        line.put("key", record.key());
        line.put("value", record.value());
        ArrayNode headers = line.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
    }
}
