package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Runs a script of steps on one partition's log, by Kafka's own storage classes on a manual clock.
 *
 * <p>A script opens a directory, takes its steps and ends. {@code "end": "close"} is a controlled
 * shutdown. {@code "end": "crash"} leaves every file as it is at that time.
 */
final class SegmentOracle {
    private static final int OFFSET_MAP_BYTES = 1 << 20;
    private static final int CLEANER_BUFFER_BYTES = 1 << 20;
    private static final BrokerTopicStats STATS = new BrokerTopicStats();

    private final ManualTime time;
    private final UnifiedLog log;

    private SegmentOracle(JsonNode script) throws IOException {
        time = new ManualTime(script.path("now_ms").asLong(0));
        log = UnifiedLog.create(
            Files.createDirectories(Path.of(script.get("dir").asText())).toFile(),
            config(script.path("config")),
            script.path("log_start").asLong(0),
            script.path("recovery_point").asLong(0),
            time,
            STATS,
            time,
            900_000,
            new ProducerStateManagerConfig(86_400_000, false),
            600_000,
            new LogDirFailureChannel(1),
            script.path("clean").asBoolean(true),
            topicId(script));
        log.updateHighWatermark(log.logEndOffset());
    }

    private static LogConfig config(JsonNode config) {
        Map<String, String> values = new HashMap<>();
        config.properties().forEach(
            entry -> values.put(entry.getKey(), entry.getValue().asText()));
        return new LogConfig(values);
    }

    private static Optional<Uuid> topicId(JsonNode script) {
        return script.has("topic_id")
            ? Optional.of(Uuid.fromString(script.get("topic_id").asText()))
            : Optional.empty();
    }

    /** Runs one script; returns the result of each step, or the error of a step that failed. */
    static JsonNode run(JsonNode script) throws IOException {
        ArrayNode answers = Oracle.JSON.createArrayNode();
        SegmentOracle oracle = new SegmentOracle(script);
        try {
            for (JsonNode step : script.path("steps")) {
                answers.add(oracle.tryStep(step));
            }
        } finally {
            oracle.end(script.path("end").asText("close"));
        }
        return answers;
    }

    private void end(String how) throws IOException {
        switch (how) {
            case "close" -> {
                log.flush(true);
                log.close();
            }
            case "crash" -> log.closeHandlers();
            default -> throw new IllegalArgumentException("end " + how);
        }
    }

    private JsonNode tryStep(JsonNode step) {
        try {
            if (step.has("now_ms")) {
                time.set(step.get("now_ms").asLong());
            }
            return step(step);
        } catch (Exception failure) {
            ObjectNode answer = Oracle.JSON.createObjectNode();
            Oracle.describe(answer, failure);
            return answer;
        }
    }

    private JsonNode step(JsonNode step) throws Exception {
        return switch (step.get("do").asText()) {
            case "append" -> append(step);
            case "roll" -> roll();
            case "flush" -> flush();
            case "truncate" -> truncate(step.get("offset").asLong());
            case "cut_back" ->
                truncate(Math.max(log.logStartOffset(),
                    log.logEndOffset() - step.get("records").asLong()));
            case "delete_records" -> deleteRecords(step.get("offset").asLong());
            case "retention" -> retention();
            case "compact" -> compact(step.path("first_dirty").asLong(0));
            case "offsets_for_times" -> offsetsForTimes(step.get("timestamps"));
            case "aborted" -> aborted(step.get("start").asLong(), step.get("end").asLong());
            case "state" -> state();
            default -> throw new IllegalArgumentException("step " + step);
        };
    }

    private JsonNode append(JsonNode step) throws IOException {
        MemoryRecords records =
            MemoryRecords.readableRecords(ByteBuffer.wrap(step.get("data").binaryValue()));
        int leaderEpoch = step.path("leader_epoch").asInt(0);
        AppendOrigin origin = AppendOrigin.valueOf(step.path("origin").asText("CLIENT"));
        LogAppendInfo info = origin == AppendOrigin.REPLICATION
            ? log.appendAsFollower(records, leaderEpoch)
            : log.appendAsLeader(
                records, leaderEpoch, origin, RequestLocal.noCaching(), VerificationGuard.SENTINEL,
                TransactionVersion.TV_0.featureLevel());
        log.updateHighWatermark(log.logEndOffset());
        ObjectNode answer = Oracle.JSON.createObjectNode();
        answer.put("first_offset", info.firstOffset()).put("last_offset", info.lastOffset());
        answer.put("max_timestamp", info.maxTimestamp());
        return answer.put("append_time", info.logAppendTime());
    }

    private JsonNode roll() throws IOException {
        return Oracle.JSON.createObjectNode().put("base_offset", log.roll().baseOffset());
    }

    private JsonNode flush() throws IOException {
        log.flush(false);
        return Oracle.JSON.createObjectNode().put("recovery_point", log.recoveryPoint());
    }

    private JsonNode truncate(long offset) throws IOException {
        boolean truncated = log.truncateTo(offset);
        return Oracle.JSON.createObjectNode().put("truncated", truncated);
    }

    private JsonNode deleteRecords(long offset) {
        boolean moved = log.maybeIncrementLogStartOffset(
            offset, LogStartOffsetIncrementReason.ClientRecordDeletion);
        return Oracle.JSON.createObjectNode().put("moved", moved);
    }

    private JsonNode retention() throws IOException {
        return Oracle.JSON.createObjectNode().put("deleted", log.deleteOldSegments());
    }

    /** Cleans all segments below the active segment, whatever the dirty ratio is. */
    private JsonNode compact(long firstDirty) throws Exception {
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", time);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(OFFSET_MAP_BYTES), CLEANER_BUFFER_BYTES, CLEANER_BUFFER_BYTES,
            0.9, throttler, time, partition -> { });
        LogToClean toClean =
            new LogToClean(log, firstDirty, log.activeSegment().baseOffset(), false);
        long cleanedTo = cleaner.clean(toClean).getKey();
        return Oracle.JSON.createObjectNode().put("cleaned_to", cleanedTo);
    }

    private JsonNode offsetsForTimes(JsonNode timestamps) {
        ArrayNode answers = Oracle.JSON.createArrayNode();
        for (JsonNode timestamp : timestamps) {
            Optional<FileRecords.TimestampAndOffset> found = log
                .fetchOffsetByTimestamp(timestamp.asLong(), Optional.empty())
                .timestampAndOffsetOpt();
            if (found.isEmpty()) {
                answers.addNull();
            } else {
                ArrayNode answer = answers.addArray().add(found.get().offset);
                answer.add(found.get().timestamp).add(found.get().leaderEpoch.orElse(null));
            }
        }
        return answers;
    }

    private JsonNode aborted(long start, long end) {
        ArrayNode answers = Oracle.JSON.createArrayNode();
        for (AbortedTxn aborted : log.collectAbortedTransactions(start, end)) {
            ArrayNode answer = answers.addArray().add(aborted.producerId());
            answer.add(aborted.firstOffset()).add(aborted.lastOffset());
            answer.add(aborted.lastStableOffset());
        }
        return answers;
    }

    private JsonNode state() throws IOException {
        ObjectNode answer = Oracle.JSON.createObjectNode();
        answer.put("log_start_offset", log.logStartOffset());
        answer.put("log_end_offset", log.logEndOffset());
        answer.put("last_stable_offset", log.lastStableOffset());
        answer.put("latest_epoch", log.latestEpoch().orElse(null));
        ArrayNode segments = answer.putArray("segments");
        for (LogSegment segment : log.logSegments()) {
            ObjectNode line = segments.addObject();
            line.put("base_offset", segment.baseOffset()).put("size_bytes", segment.size());
            line.put("largest_timestamp", segment.largestTimestamp());
            line.put("max_timestamp", segment.maxTimestampSoFar());
            File file = segment.log().file();
            line.put("file", file.getName());
        }
        return answer;
    }
}
