package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterClientQuotasOptions;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** Finds out through Kafka's own client which administration steps one user may take. */
final class Administration {
    private final Map<String, Step> steps = new LinkedHashMap<>();
    private final JsonNode asked;

    private Administration(JsonNode question) {
        asked = question;
    }

    /** One request of the client. */
    private interface Step {
        KafkaFuture<?> by(Admin admin);
    }

    /** Returns, for each step, the error code that the client shows. */
    static JsonNode ask(JsonNode question) throws Exception {
        Administration found = new Administration(question);
        found.aboutTopics();
        found.aboutGroups();
        found.aboutRules();
        found.aboutUsers();
        found.aboutTheBroker();
        found.aboutPlaces();
        Map<String, Object> config = new HashMap<>();
        question.get("config").properties().forEach(
            entry -> config.put(entry.getKey(), entry.getValue().asText()));
        ObjectNode told = Oracle.JSON.createObjectNode();
        try (Admin admin = Admin.create(config)) {
            for (Map.Entry<String, Step> step : found.steps.entrySet()) {
                told.put(step.getKey(), code(step.getValue().by(admin)));
            }
        }
        return told;
    }

    private static int code(KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            return 0;
        } catch (ExecutionException failure) {
            return Errors.forException(failure.getCause()).code();
        }
    }

    private String text(String name) {
        return asked.get(name).asText();
    }

    private TopicPartition seen() {
        return new TopicPartition(text("seen"), 0);
    }

    private static Map<ConfigResource, Collection<AlterConfigOp>> change(
            ConfigResource resource, String key, String value) {
        ConfigEntry entry = new ConfigEntry(key, value);
        return Map.of(resource, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)));
    }

    private void aboutTopics() {
        String made = text("made");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
        ConfigResource other = new ConfigResource(ConfigResource.Type.TOPIC, text("seen"));
        steps.put("grow",
            admin -> admin.createPartitions(Map.of(made, NewPartitions.increaseTo(2))).all());
        steps.put("set", admin -> admin.incrementalAlterConfigs(
            change(resource, "retention.ms", "1000000")).all());
        steps.put("delete", admin -> admin.deleteTopics(List.of(made)).all());
        steps.put("create",
            admin -> admin.createTopics(List.of(new NewTopic(made, 1, (short) 1))).all());
        steps.put("look", admin -> admin.describeConfigs(List.of(other)).all());
        steps.put("trim", admin -> admin.deleteRecords(
            Map.of(seen(), RecordsToDelete.beforeOffset(0))).all());
        steps.put("producers", admin -> admin.describeProducers(List.of(seen())).all());
    }

    private void aboutGroups() {
        String group = text("group");
        steps.put("forget-offsets",
            admin -> admin.deleteConsumerGroupOffsets(group, Set.of(seen())).all());
        steps.put("forget", admin -> admin.deleteConsumerGroups(List.of(group)).all());
    }

    private void aboutRules() {
        ResourcePattern later =
            new ResourcePattern(ResourceType.TOPIC, "later", PatternType.LITERAL);
        AclBinding rule = new AclBinding(later, new AccessControlEntry(
            "User:later", "*", AclOperation.READ, AclPermissionType.ALLOW));
        steps.put("rules", admin -> admin.describeAcls(AclBindingFilter.ANY).values());
        steps.put("add-rule", admin -> admin.createAcls(List.of(rule)).all());
        steps.put("drop-rule", admin -> admin.deleteAcls(List.of(rule.toFilter())).all());
    }

    private void aboutUsers() {
        String someone = text("someone");
        ClientQuotaEntity entity =
            new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, someone));
        ClientQuotaAlteration slower = new ClientQuotaAlteration(
            entity, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9)));
        steps.put("users", admin ->
            admin.describeUserScramCredentials(List.of(someone)).description(someone));
        steps.put("change-users", admin -> admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion(someone, ScramMechanism.SCRAM_SHA_256))).all());
        steps.put("quotas",
            admin -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
        steps.put("change-quotas", admin -> admin.alterClientQuotas(
            List.of(slower), new AlterClientQuotasOptions().validateOnly(true)).all());
    }

    private void aboutTheBroker() {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, text("broker"));
        steps.put("look-at-broker", admin -> admin.describeConfigs(List.of(broker)).all());
        steps.put("set-broker", admin -> admin.incrementalAlterConfigs(
            change(broker, text("broker_key"), "15001"),
            new AlterConfigsOptions().validateOnly(true)).all());
        steps.put("resources", admin -> admin.listConfigResources(
            Set.of(ConfigResource.Type.BROKER), new ListConfigResourcesOptions()).all());
        steps.put("quorum", admin -> admin.describeMetadataQuorum().quorumInfo());
    }

    private void aboutPlaces() {
        int broker = asked.get("broker").asInt();
        TopicPartitionReplica replica = new TopicPartitionReplica(text("seen"), 0, broker);
        TopicPartition nowhere = new TopicPartition(text("nowhere"), 0);
        steps.put("elect",
            admin -> admin.electLeaders(ElectionType.PREFERRED, Set.of(seen())).all());
        steps.put("dirs", admin -> admin.describeLogDirs(List.of(broker)).allDescriptions());
        steps.put("move", admin ->
            admin.alterReplicaLogDirs(Map.of(replica, text("no_folder"))).all());
        steps.put("reassign", admin -> admin.alterPartitionReassignments(Map.of(
            nowhere, Optional.of(new NewPartitionReassignment(List.of(broker))))).all());
        steps.put("ongoing", admin -> admin.listPartitionReassignments().reassignments());
    }
}
