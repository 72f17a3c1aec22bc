package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A classic group whose second member joins and leaves; one thread polls both in turn. */
final class Groups {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final long DEADLINE_NANOS = 240_000_000_000L;

    private Groups() {}

    /**
     * Polls one member until it has all partitions, then two members until each has half of them,
     * then one member again. Returns how many partitions each member had, and the values.
     */
    static JsonNode rebalance(JsonNode question) {
        int partitions = question.get("partitions").asInt();
        ObjectNode answer = Oracle.JSON.createObjectNode();
        ArrayNode sizes = answer.putArray("sizes");
        // If the broker has removed a member, records may be read twice, so this is a set.
        Set<String> values = new LinkedHashSet<>();
        try (KafkaConsumer<byte[], byte[]> first = member(question)) {
            settle(List.of(first), partitions, values);
            sizes.add(first.assignment().size());
            try (KafkaConsumer<byte[], byte[]> second = member(question)) {
                settle(List.of(first, second), partitions / 2, values);
                sizes.add(first.assignment().size()).add(second.assignment().size());
            }
            settle(List.of(first), partitions, values);
            sizes.add(first.assignment().size());
            while (values.size() < question.get("records").asInt()) {
                poll(first, values);
            }
            first.commitSync();
        }
        ArrayNode told = answer.putArray("values");
        values.forEach(told::add);
        return answer;
    }

    private static KafkaConsumer<byte[], byte[]> member(JsonNode question) {
        Properties properties = new Properties();
        question.get("config").properties().forEach(
            entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes);
        consumer.subscribe(List.of(question.get("topic").asText()));
        return consumer;
    }

    private static void settle(
            List<KafkaConsumer<byte[], byte[]>> members, int each, Set<String> values) {
        long begun = System.nanoTime();
        while (members.stream().anyMatch(one -> one.assignment().size() != each)) {
            if (System.nanoTime() - begun > DEADLINE_NANOS) {
                throw new IllegalStateException("the group does not settle");
            }
            members.forEach(one -> poll(one, values));
        }
    }

    private static void poll(KafkaConsumer<byte[], byte[]> consumer, Set<String> values) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            values.add(new String(record.value(), StandardCharsets.UTF_8));
        }
    }
}
