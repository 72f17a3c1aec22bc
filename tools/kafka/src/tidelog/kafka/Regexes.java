package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;

/** Matches texts by the library that Kafka uses for clients' regular expressions. */
final class Regexes {
    private Regexes() {}

    /** Returns whether each of {@code texts} fully matches {@code regex}; null if it is invalid. */
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
