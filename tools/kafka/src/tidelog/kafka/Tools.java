package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Runs Kafka's command-line tools without a separate JVM for each run. */
final class Tools {
    private Tools() {}

    /** Runs {@code main_class} with {@code args}; returns its output and its exit status. */
    static JsonNode run(JsonNode question) throws Exception {
        List<String> args = new ArrayList<>();
        question.get("args").forEach(each -> args.add(each.asText()));
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ObjectNode told = Oracle.JSON.createObjectNode().put("status", 0);
        try (PrintStream listening = new PrintStream(said, true, StandardCharsets.UTF_8)) {
            System.setOut(listening);
            System.setErr(listening);
            Class.forName(question.get("main_class").asText())
                .getMethod("main", String[].class).invoke(null, (Object) args.toArray(String[]::new));
        } catch (InvocationTargetException failure) {
            end(told, failure.getCause());
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return told.put("said", said.toString(StandardCharsets.UTF_8));
    }

    private static void end(ObjectNode told, Throwable thrown) throws InvocationTargetException {
        if (!(thrown instanceof Oracle.ToolExit exit)) {
            throw new InvocationTargetException(thrown);
        }
        told.put("status", exit.status());
    }
}
