package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import kafka.tools.StorageTool;
import org.apache.kafka.tools.DumpLogSegments;

/** Runs Kafka's command-line tools in this process, and captures their output. */
final class DumpFiles {
    private DumpFiles() {}

    private static String[] arguments(JsonNode question) {
        List<String> arguments = new ArrayList<>();
        question.get("args").forEach(argument -> arguments.add(argument.asText()));
        return arguments.toArray(new String[0]);
    }

    private static PrintStream into(ByteArrayOutputStream bytes) {
        return new PrintStream(bytes, true, StandardCharsets.UTF_8);
    }

    /** Runs DumpLogSegments with {@code args}; the answer includes an exception that it throws. */
    static JsonNode run(JsonNode question) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream formerOut = System.out;
        PrintStream formerErr = System.err;
        ObjectNode answer = Oracle.JSON.createObjectNode();
        System.setOut(into(out));
        System.setErr(into(err));
        try {
            DumpLogSegments.main(arguments(question));
        } catch (Exception failure) {
            Oracle.describe(answer, failure);
        } finally {
            System.setOut(formerOut);
            System.setErr(formerErr);
        }
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        return answer.put("err", err.toString(StandardCharsets.UTF_8));
    }

    /** Runs StorageTool with {@code args}, which formats a new broker's directory. */
    static JsonNode formatStorage(JsonNode question) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        int status = StorageTool.execute(arguments(question), into(out));
        ObjectNode answer = Oracle.JSON.createObjectNode().put("status", status);
        return answer.put("out", out.toString(StandardCharsets.UTF_8));
    }
}
