package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The three lookups of KIP-79 in one partition, by Kafka's own consumer. */
final class Lookups {
    private Lookups() {}

    /** Returns the first and the end offset, and for each time offset and timestamp, or null. */
    static JsonNode lookUp(JsonNode question) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", question.get("bootstrap").asText());
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        TopicPartition partition = new TopicPartition(question.get("topic").asText(), 0);
        ObjectNode answer = Oracle.JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, bytes, bytes)) {
            answer.put("begin", consumer.beginningOffsets(List.of(partition)).get(partition));
            answer.put("end", consumer.endOffsets(List.of(partition)).get(partition));
            ArrayNode found = answer.putArray("found");
            for (JsonNode time : question.get("times")) {
                OffsetAndTimestamp one =
                    consumer.offsetsForTimes(Map.of(partition, time.asLong())).get(partition);
                if (one == null) {
                    found.addNull();
                } else {
                    found.addArray().add(one.offset()).add(one.timestamp());
                }
            }
        }
        return answer;
    }
}
