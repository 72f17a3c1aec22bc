package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;

/** What the library that Kafka matches clients' regular expressions with makes of one. */
final class Regexes {
    private Regexes() {}

    /** Whether each of {@code texts} matches {@code regex} as a whole; null where it is refused. */
    static JsonNode match(JsonNode question) {
        Pattern pattern;
        try {
            pattern = Pattern.compile(question.get("regex").asText());
        } catch (PatternSyntaxException refused) {
            return Oracle.JSON.nullNode();
        }
        ArrayNode answer = Oracle.JSON.createArrayNode();
        for (JsonNode text : question.get("texts")) {
            answer.add(pattern.matcher(text.asText()).matches());
        }
        return answer;
    }
}
