package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One user's rights on transactions, share groups and features, by Kafka's own clients. */
final class ToolRights {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long DEADLINE_NANOS = 90_000_000_000L;
    private static final long NOBODYS_ID = 987_654_321L;

    private final Map<String, Step> steps = new LinkedHashMap<>();
    private final Map<String, Object> config = new HashMap<>();
    private final JsonNode asked;

    private ToolRights(JsonNode question) {
        asked = question;
        question.get("config").properties().forEach(
            entry -> config.put(entry.getKey(), entry.getValue().asText()));
    }

    /** One step; throws an exception if it is denied, or if it fails for another reason. */
    private interface Step {
        void run(Admin admin) throws Exception;
    }

    /** The work inside a transaction. */
    private interface Action {
        void by(KafkaProducer<byte[], byte[]> producer) throws Exception;
    }

    /** Returns, for each step, the error code that the client shows. */
    static JsonNode ask(JsonNode question) throws Exception {
        ToolRights found = new ToolRights(question);
        found.producing();
        found.aboutTransactions();
        found.sharing();
        found.aboutShareGroups();
        found.aboutFeatures();
        ObjectNode told = Oracle.JSON.createObjectNode();
        try (Admin admin = Admin.create(found.config)) {
            for (Map.Entry<String, Step> step : found.steps.entrySet()) {
                told.put(step.getKey(), code(step.getValue(), admin));
            }
        }
        return told;
    }

    private static int code(Step step, Admin admin) throws Exception {
        try {
            step.run(admin);
            return 0;
        } catch (KafkaException | ExecutionException failure) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                Errors found = error(cause);
                if (found != Errors.UNKNOWN_SERVER_ERROR) {
                    return found.code();
                }
            }
            throw failure;
        }
    }

    /** Returns the error by its class, or by its text if the producer did not expect the error. */
    private static Errors error(Throwable cause) {
        String said = String.valueOf(cause.getMessage());
        for (Errors each : Errors.values()) {
            if (each.exception() != null && said.startsWith("Unexpected error")
                    && said.endsWith(each.message())) {
                return each;
            }
        }
        return Errors.forException(cause);
    }

    private String text(String name) {
        return asked.get(name).asText();
    }

    private TopicPartition seen() {
        return new TopicPartition(text("seen"), 0);
    }

    private void ask(String name, Function<Admin, KafkaFuture<?>> question) {
        steps.put(name, admin -> question.apply(admin).get());
    }

    private void producing() {
        steps.put("write", admin -> inTransaction(producer ->
            producer.send(new ProducerRecord<>(text("seen"), 0, null, new byte[] {'t'})).get()));
        steps.put("commit-offsets", admin -> inTransaction(producer -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
                producer.sendOffsetsToTransaction(
                    Map.of(seen(), new OffsetAndMetadata(1)), consumer.groupMetadata());
            }
        }));
    }

    /** Runs an action in a transaction; closes at once, as a failed producer would wait. */
    private void inTransaction(Action action) throws Exception {
        KafkaProducer<byte[], byte[]> producer = begun();
        try {
            action.by(producer);
            producer.commitTransaction();
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Map<String, Object> given = new HashMap<>(config);
        given.put("group.id", text("group"));
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(given, bytes, bytes);
    }

    private KafkaProducer<byte[], byte[]> begun() {
        Map<String, Object> given = new HashMap<>(config);
        given.put("max.block.ms", "90000");
        given.put("delivery.timeout.ms", "180000");
        given.put("transactional.id", text("id"));
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(given, bytes, bytes);
        try {
            producer.initTransactions();
            producer.beginTransaction();
        } catch (KafkaException refused) {
            producer.close(Duration.ZERO);
            throw refused;
        }
        return producer;
    }

    private void aboutTransactions() {
        String id = text("id");
        // The list omits transactions that the user may not describe.
        steps.put("list-transactions", admin -> {
            if (admin.listTransactions().all().get().stream().noneMatch(
                    each -> each.transactionalId().equals(id))) {
                throw Errors.TRANSACTIONAL_ID_NOT_FOUND.exception();
            }
        });
        ask("describe-transactions", admin -> admin.describeTransactions(List.of(id)).all());
        ask("abort-transaction", admin -> admin.abortTransaction(
            new AbortTransactionSpec(seen(), NOBODYS_ID, (short) 0, 0)).all());
        ask("fence-producers", admin -> admin.fenceProducers(List.of(id)).all());
        ask("terminate-transaction", admin -> admin.forceTerminateTransaction(id).result());
    }

    private void sharing() {
        steps.put("share", admin -> {
            Map<String, Object> given = new HashMap<>(config);
            given.put("group.id", text("lent"));
            ByteArrayDeserializer bytes = new ByteArrayDeserializer();
            try (KafkaShareConsumer<byte[], byte[]> consumer =
                    new KafkaShareConsumer<>(given, bytes, bytes)) {
                consumer.subscribe(List.of(text("seen")));
                acknowledgeOne(consumer);
            }
        });
    }

    private static void acknowledgeOne(KafkaShareConsumer<byte[], byte[]> consumer) {
        long begun = System.nanoTime();
        while (consumer.poll(POLL).isEmpty()) {
            if (System.nanoTime() - begun > DEADLINE_NANOS) {
                throw new IllegalStateException("no record was lent");
            }
        }
        Map<TopicIdPartition, Optional<KafkaException>> said = consumer.commitSync();
        for (Optional<KafkaException> failure : said.values()) {
            failure.ifPresent(found -> {
                throw found;
            });
        }
    }

    private void aboutShareGroups() {
        String lent = text("lent");
        Collection<String> groups = List.of(lent);
        Map<String, ListShareGroupOffsetsSpec> whole =
            Map.of(lent, new ListShareGroupOffsetsSpec().topicPartitions(Set.of(seen())));
        ask("describe-lent", admin -> admin.describeShareGroups(groups).all());
        // The result omits topics that the user may not describe.
        steps.put("lent-offsets", admin -> {
            if (!admin.listShareGroupOffsets(whole).all().get().get(lent).containsKey(seen())) {
                throw Errors.TOPIC_AUTHORIZATION_FAILED.exception();
            }
        });
        ask("set-lent-offsets",
            admin -> admin.alterShareGroupOffsets(lent, Map.of(seen(), 0L)).all());
        ask("drop-lent-offsets",
            admin -> admin.deleteShareGroupOffsets(lent, Set.of(text("seen"))).all());
        ask("drop-lent", admin -> admin.deleteShareGroups(groups).all());
    }

    private void aboutFeatures() {
        ask("features", admin -> admin.describeFeatures().featureMetadata());
        FeatureUpdate same = new FeatureUpdate((short) 2, FeatureUpdate.UpgradeType.UPGRADE);
        ask("set-feature", admin -> admin.updateFeatures(
            Map.of("transaction.version", same),
            new UpdateFeaturesOptions().validateOnly(true)).all());
    }
}
