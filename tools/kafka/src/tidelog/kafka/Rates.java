package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.server.quota.QuotaUtils;

/** Throttle times of a client after each use of its quota, by the broker's own sensors. */
final class Rates {
    private static final int SAMPLES = 11;

    private Rates() {}

    /** Returns the throttle time in ms for each of {@code uses} (time in ms, amount). */
    static JsonNode throttle(JsonNode question) {
        ArrayNode waits = Oracle.JSON.createArrayNode();
        try (Metrics metrics = new Metrics()) {
            Sensor sensor = metrics.sensor("uses");
            MetricConfig config = new MetricConfig().timeWindow(1, TimeUnit.SECONDS)
                .samples(SAMPLES).quota(Quota.upperBound(question.get("bound").asDouble()));
            sensor.add(metrics.metricName("rate", "quota"), new Rate(), config);
            for (JsonNode use : question.get("uses")) {
                long time = use.get(0).asLong();
                try {
                    sensor.record(use.get(1).asDouble(), time, true);
                    waits.add(0);
                } catch (QuotaViolationException violation) {
                    waits.add(QuotaUtils.throttleTime(violation, time));
                }
            }
        }
        return waits;
    }
}
