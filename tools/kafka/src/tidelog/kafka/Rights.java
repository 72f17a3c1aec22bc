package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ClusterAuthorizationException;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Finds out through Kafka's own clients what one user may do. */
final class Rights {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final long DEADLINE_NANOS = 90_000_000_000L;

    private final Map<String, Object> config = new HashMap<>();
    private final String open;

    private Rights(JsonNode question) {
        question.get("config").properties().forEach(
            entry -> config.put(entry.getKey(), entry.getValue().asText()));
        open = question.get("open").asText();
    }

    /** One attempt; throws an exception if it is denied, or if it fails for another reason. */
    private interface Attempt {
        void on(String name) throws Exception;
    }

    /** Returns, for each of {@code steps} and each of its names, whether the user has the right. */
    static JsonNode ask(JsonNode question) throws Exception {
        Rights rights = new Rights(question);
        JsonNode steps = question.get("steps");
        ObjectNode told = Oracle.JSON.createObjectNode();
        try (Admin admin = Admin.create(rights.config)) {
            rights.admin(admin, steps, told);
        }
        try (KafkaProducer<byte[], byte[]> producer =
                rights.producer(Map.of("enable.idempotence", "false"))) {
            each(steps, told, "write", TopicAuthorizationException.class,
                name -> producer.send(record(name)).get());
        }
        try (KafkaConsumer<byte[], byte[]> consumer = rights.consumer()) {
            each(steps, told, "read", TopicAuthorizationException.class,
                name -> read(consumer, name));
        }
        each(steps, told, "begin", TransactionalIdAuthorizationException.class, rights::begin);
        each(steps, told, "number", ClusterAuthorizationException.class, rights::number);
        return told;
    }

    private static void each(JsonNode steps, ObjectNode told, String step,
            Class<? extends Exception> denial, Attempt attempt) throws Exception {
        ObjectNode found = told.putObject(step);
        for (JsonNode name : steps.path(step)) {
            found.put(name.asText(), isAllowed(denial, attempt, name.asText()));
        }
    }

    /** Whether the attempt succeeds, or is denied; throws any other failure. */
    private static boolean isAllowed(
            Class<? extends Exception> denial, Attempt attempt, String name) throws Exception {
        try {
            attempt.on(name);
            return true;
        } catch (Exception failure) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                if (denial.isInstance(cause)) {
                    return false;
                }
            }
            throw failure;
        }
    }

    private void admin(Admin admin, JsonNode steps, ObjectNode told) throws Exception {
        each(steps, told, "see", TopicAuthorizationException.class,
            name -> admin.describeTopics(List.of(name)).allTopicNames().get());
        each(steps, told, "committed", GroupAuthorizationException.class,
            name -> admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get());
        Map<TopicPartition, OffsetAndMetadata> given =
            Map.of(new TopicPartition(open, 0), new OffsetAndMetadata(1));
        each(steps, told, "commit", GroupAuthorizationException.class,
            name -> admin.alterConsumerGroupOffsets(name, given).all().get());
    }

    private static ProducerRecord<byte[], byte[]> record(String topic) {
        return new ProducerRecord<>(topic, 0, null, new byte[] {'w'});
    }

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> given = new HashMap<>(config);
        given.put("max.block.ms", "90000");
        given.put("delivery.timeout.ms", "180000");
        given.putAll(more);
        ByteArraySerializer bytes = new ByteArraySerializer();
        return new KafkaProducer<>(given, bytes, bytes);
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Map<String, Object> given = new HashMap<>(config);
        given.put("enable.auto.commit", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(given, bytes, bytes);
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        consumer.seek(partition, 0);
        long begun = System.nanoTime();
        while (true) {
            if (System.nanoTime() - begun > DEADLINE_NANOS) {
                throw new IllegalStateException("no record of " + topic);
            }
            try {
                if (!consumer.poll(POLL).isEmpty()) {
                    return;
                }
            } catch (TopicAuthorizationException denial) {
                // The exception may still be about the previous topic.
                if (denial.unauthorizedTopics().contains(topic)) {
                    throw denial;
                }
            }
        }
    }

    private void begin(String transactionalId) {
        try (KafkaProducer<byte[], byte[]> producer =
                producer(Map.of("transactional.id", transactionalId))) {
            producer.initTransactions();
        }
    }

    /** Requests a producer id; ignores a later denial to write to the topic. */
    private void number(String ignored) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer =
                producer(Map.of("enable.idempotence", "true"))) {
            isAllowed(TopicAuthorizationException.class,
                topic -> producer.send(record(topic)).get(), open);
        }
    }
}
