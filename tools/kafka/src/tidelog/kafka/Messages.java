package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/** Decodes a message by Kafka's own class, returns its fields, and encodes it again. */
final class Messages {
    private static final String PACKAGE = "org.apache.kafka.common.message.";

    private Messages() {}

    /** Returns the key, the first and the last stable version of each API. */
    static JsonNode versions(JsonNode question) {
        ObjectNode answer = Oracle.JSON.createObjectNode();
        for (ApiKeys api : ApiKeys.values()) {
            answer.putArray(api.name)
                .add(api.id).add(api.oldestVersion()).add(api.latestVersion(false));
        }
        return answer;
    }

    static JsonNode message(JsonNode question) throws Exception {
        String asked = question.get("name").asText();
        // Records of the group coordinator are given by their full class names, without suffix.
        String name = asked.contains(".") ? asked
            : PACKAGE + asked + (asked.startsWith("ConsumerProtocol") ? "" : "Data");
        short version = (short) question.get("version").asInt();
        byte[] data = Base64.getDecoder().decode(question.get("data").asText());
        ByteBufferAccessor readable = new ByteBufferAccessor(ByteBuffer.wrap(data));
        ApiMessage message = (ApiMessage) Class.forName(name)
            .getConstructor(Readable.class, short.class)
            .newInstance(readable, version);
        ObjectNode answer = Oracle.JSON.createObjectNode();
        answer.put("left", readable.remaining());
        answer.set("fields", (JsonNode) Class.forName(name + "JsonConverter")
            .getMethod("write", message.getClass(), short.class)
            .invoke(null, message, version));
        ByteBuffer again = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[again.remaining()];
        again.get(bytes);
        answer.put("data", Base64.getEncoder().encodeToString(bytes));
        return answer;
    }
}
