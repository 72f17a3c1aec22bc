package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;

/**
 * Looks up very many offsets by time in a broker, through Kafka's own admin client.
 *
 * <p>Arguments: bootstrap servers, a file with questions, and a file for the answers. A question is
 * {@code [topic, partition, [spec, ...]]}. A spec is a time in ms, or a negative special value of
 * ListOffsets. An answer is {@code [[offset, timestamp], ...]} in the same order.
 */
public final class OffsetQuestions {
    private OffsetQuestions() {}

    private static OffsetSpec spec(long value) {
        return switch ((int) Math.max(value, -9)) {
            case -1 -> OffsetSpec.latest();
            case -2 -> OffsetSpec.earliest();
            case -3 -> OffsetSpec.maxTimestamp();
            case -4 -> OffsetSpec.earliestLocal();
            case -5 -> OffsetSpec.latestTiered();
            default -> OffsetSpec.forTimestamp(value);
        };
    }

    /** Sends the n-th specs of all partitions together, as a request has one spec a partition. */
    private static List<ArrayNode> ask(Admin admin, JsonNode questions) throws Exception {
        List<ArrayNode> answers = new ArrayList<>();
        List<TopicPartition> names = new ArrayList<>();
        int rounds = 0;
        for (JsonNode question : questions) {
            answers.add(Oracle.JSON.createArrayNode());
            names.add(new TopicPartition(question.get(0).asText(), question.get(1).asInt()));
            rounds = Math.max(rounds, question.get(2).size());
        }
        for (int round = 0; round < rounds; round++) {
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            for (int number = 0; number < names.size(); number++) {
                JsonNode specs = questions.get(number).get(2);
                if (round < specs.size()) {
                    asked.put(names.get(number), spec(specs.get(round).asLong()));
                }
            }
            ListOffsetsResult result = admin.listOffsets(asked);
            for (int number = 0; number < names.size(); number++) {
                if (asked.containsKey(names.get(number))) {
                    var found = result.partitionResult(names.get(number)).get();
                    answers.get(number).addArray().add(found.offset()).add(found.timestamp());
                }
            }
        }
        return answers;
    }

    /** Looks up all questions of a file, and writes the answers. */
    public static void main(String[] args) throws Exception {
        JsonNode questions = Oracle.JSON.readTree(new File(args[1]));
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", args[0]))) {
            Oracle.JSON.writeValue(new File(args[2]), ask(admin, questions));
        }
    }
}
