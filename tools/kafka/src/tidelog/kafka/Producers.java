package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records to a broker by Kafka's own producer; its batches differ from librdkafka's. */
final class Producers {
    private Producers() {}

    /**
     * Sends {@code records} to one partition; returns the offset and the timestamp of each record.
     * If {@code config} has a {@code transactional.id}, all records are in one transaction, which
     * is aborted if {@code commit} is false.
     */
    static JsonNode produce(JsonNode question) throws Exception {
        Properties properties = new Properties();
        question.get("config").properties().forEach(
            entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        ByteArraySerializer serializer = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, serializer, serializer)) {
            boolean transactional = properties.containsKey("transactional.id");
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            ArrayNode answer = send(producer, question);
            if (transactional) {
                end(producer, question.path("commit").asBoolean(true));
            }
            return answer;
        }
    }

    private static void end(KafkaProducer<byte[], byte[]> producer, boolean commit) {
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    private static ArrayNode send(KafkaProducer<byte[], byte[]> producer, JsonNode question)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : question.get("records")) {
            sent.add(producer.send(toSend(question, record)));
        }
        producer.flush();
        ArrayNode answer = Oracle.JSON.createArrayNode();
        for (Future<RecordMetadata> future : sent) {
            ObjectNode line = answer.addObject();
            line.put("offset", future.get().offset()).put("timestamp", future.get().timestamp());
        }
        return answer;
    }

    private static ProducerRecord<byte[], byte[]> toSend(JsonNode question, JsonNode record) {
        JsonNode timestamp = record.path("timestamp");
        return new ProducerRecord<>(
            question.get("topic").asText(),
            question.path("partition").asInt(0),
            timestamp.isNumber() ? timestamp.asLong() : null,
            RecordVectors.bytes(record.get("key")),
            RecordVectors.bytes(record.get("value")),
            List.of(RecordVectors.headers(record)));
    }
}
