package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Runs operations with Apache Kafka's own classes, one JSON object per line.
 *
 * <p>Each line on stdin is {@code {"op": NAME, ...}}; each line on stdout is {@code {"result": ...}}
 * or {@code {"error": CLASS, "message": TEXT}}. One process runs many operations, because a JVM's
 * start takes longer than hundreds of operations. Everything runs on this one thread.
 */
public final class Oracle {
    static final ObjectMapper JSON = new ObjectMapper();

    /** One operation; its result is any JSON tree. */
    interface Operation {
        JsonNode answer(JsonNode question) throws Exception;
    }

    private static final Map<String, Operation> OPERATIONS = Map.ofEntries(
        entry("ping", question -> JSON.createObjectNode().put("pid", ProcessHandle.current().pid())),
        entry("records_write", RecordVectors::write),
        entry("records_read", RecordVectors::read),
        entry("log_script", SegmentOracle::run),
        entry("dump", DumpFiles::run),
        entry("format_storage", DumpFiles::formatStorage),
        entry("produce", Producers::produce),
        entry("consume", Consumers::consume),
        entry("look_up", Lookups::lookUp),
        entry("rebalance", Groups::rebalance),
        entry("match", Regexes::match),
        entry("throttle", Rates::throttle),
        entry("rights", Rights::ask),
        entry("administer", Administration::ask),
        entry("tool_rights", ToolRights::ask),
        entry("tool", Tools::run),
        entry("authorize", Authorizers::authorize),
        entry("message", Messages::message),
        entry("versions", Messages::versions));

    private Oracle() {}

    private static Map.Entry<String, Operation> entry(String name, Operation operation) {
        return Map.entry(name, operation);
    }

    /** Thrown instead of ending the process if one of Kafka's tools exits, as for bad arguments. */
    static final class ToolExit extends RuntimeException {
        private static final long serialVersionUID = 1L;

        private final int status;

        ToolExit(int status, String message) {
            super("exit " + status + (message == null ? "" : ": " + message));
            this.status = status;
        }

        int status() {
            return status;
        }
    }

    private static ObjectNode answer(String line) {
        ObjectNode reply = JSON.createObjectNode();
        try {
            JsonNode question = JSON.readTree(line);
            Operation operation = OPERATIONS.get(question.path("op").asText());
            if (operation == null) {
                throw new IllegalArgumentException("unknown op in " + line);
            }
            reply.set("result", operation.answer(question));
        } catch (Exception | Error failure) {
            describe(reply, failure);
        }
        return reply;
    }

    /** Adds an exception to a reply: the protocol's error code, the class and the message. */
    static void describe(ObjectNode reply, Throwable thrown) {
        Throwable failure = thrown instanceof RecordValidationException refused
            ? refused.invalidException() : thrown;
        reply.put("code", Errors.forException(failure).code());
        reply.put("error", failure.getClass().getSimpleName());
        reply.put("message", String.valueOf(failure.getMessage()));
    }

    /** Runs the operations of all lines on stdin. */
    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Exit.setExitProcedure((status, message) -> {
            throw new ToolExit(status, message);
        });
        BufferedReader questions =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            answers.print(JSON.writeValueAsString(answer(line)));
            answers.print('\n');
            answers.flush();
        }
    }
}
