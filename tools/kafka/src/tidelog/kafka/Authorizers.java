package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Results of Kafka's own authorizer for given ACLs. */
final class Authorizers {
    private Authorizers() {}

    /** A principal at an address; the authorizer uses no other part of a request. */
    private record Asker(KafkaPrincipal principal, InetAddress clientAddress)
            implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "L";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_PLAINTEXT;
        }

        @Override
        public int requestType() {
            return 0;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "c";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }

    /**
     * Returns, for each of {@code asked} (user, address, operation, type, name), whether the
     * operation is allowed. A null name asks whether it is allowed on any resource of the type.
     */
    static JsonNode authorize(JsonNode question) throws Exception {
        try (Metrics metrics = new Metrics();
                PluginMetricsImpl plugin = new PluginMetricsImpl(metrics, Map.of());
                StandardAuthorizer authorizer = new StandardAuthorizer()) {
            authorizer.withPluginMetrics(plugin);
            authorizer.configure(Map.of(
                StandardAuthorizer.SUPER_USERS_CONFIG, question.get("super_users").asText(),
                StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG,
                question.get("is_open").asText()));
            Map<Uuid, StandardAcl> acls = new HashMap<>();
            for (JsonNode rule : question.get("rules")) {
                acls.put(Uuid.randomUuid(), acl(rule));
            }
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
            ArrayNode told = Oracle.JSON.createArrayNode();
            for (JsonNode asked : question.get("asked")) {
                told.add(answer(authorizer, asked) == AuthorizationResult.ALLOWED);
            }
            return told;
        }
    }

    private static StandardAcl acl(JsonNode rule) {
        return new StandardAcl(
            ResourceType.fromCode((byte) rule.get(0).asInt()),
            rule.get(1).asText(),
            PatternType.fromCode((byte) rule.get(2).asInt()),
            rule.get(3).asText(),
            rule.get(4).asText(),
            AclOperation.fromCode((byte) rule.get(5).asInt()),
            AclPermissionType.fromCode((byte) rule.get(6).asInt()));
    }

    private static AuthorizationResult answer(StandardAuthorizer authorizer, JsonNode asked)
            throws Exception {
        KafkaPrincipal principal =
            new KafkaPrincipal(KafkaPrincipal.USER_TYPE, asked.get(0).asText());
        Asker asker = new Asker(principal, InetAddress.getByName(asked.get(1).asText()));
        AclOperation operation = AclOperation.fromCode((byte) asked.get(2).asInt());
        ResourceType type = ResourceType.fromCode((byte) asked.get(3).asInt());
        if (asked.get(4).isNull()) {
            return authorizer.authorizeByResourceType(asker, operation, type);
        }
        ResourcePattern pattern =
            new ResourcePattern(type, asked.get(4).asText(), PatternType.LITERAL);
        return authorizer.authorize(
            asker, List.of(new Action(operation, pattern, 1, true, false))).get(0);
    }
}
