package tidelog.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.compress.GzipCompression;
import org.apache.kafka.common.compress.Lz4Compression;
import org.apache.kafka.common.compress.ZstdCompression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.Utils;

/** Encodes and decodes record batches by Kafka's own classes: lists in JSON to and from bytes. */
final class RecordVectors {
    private RecordVectors() {}

    /** Encodes {@code batches}; returns the bytes in base64, or writes them to {@code path}. */
    static JsonNode write(JsonNode question) throws IOException {
        List<byte[]> parts = new ArrayList<>();
        for (JsonNode batch : question.get("batches")) {
            parts.add(build(batch));
        }
        byte[] all = Utils.toArray(join(parts));
        ObjectNode answer = Oracle.JSON.createObjectNode();
        if (question.has("path")) {
            Files.write(Path.of(question.get("path").asText()), all);
            return answer.put("size", all.length);
        }
        return answer.put("size", all.length).put("data", all);
    }

    private static ByteBuffer join(List<byte[]> parts) {
        int size = parts.stream().mapToInt(part -> part.length).sum();
        ByteBuffer joined = ByteBuffer.allocate(size);
        parts.forEach(joined::put);
        joined.flip();
        return joined;
    }

    /** Encodes one batch; a field that is left out has Kafka's value for "none". */
    static byte[] build(JsonNode batch) {
        boolean control = batch.has("marker");
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            new ByteBufferOutputStream(1024),
            (byte) batch.path("magic").asInt(RecordBatch.CURRENT_MAGIC_VALUE),
            compression(batch),
            timestampType(batch),
            batch.path("base_offset").asLong(0),
            batch.path("append_time").asLong(RecordBatch.NO_TIMESTAMP),
            batch.path("producer_id").asLong(RecordBatch.NO_PRODUCER_ID),
            (short) batch.path("producer_epoch").asInt(RecordBatch.NO_PRODUCER_EPOCH),
            batch.path("base_sequence").asInt(RecordBatch.NO_SEQUENCE),
            batch.path("transactional").asBoolean(false),
            control,
            batch.path("leader_epoch").asInt(RecordBatch.NO_PARTITION_LEADER_EPOCH),
            Integer.MAX_VALUE,
            batch.path("delete_horizon_ms").asLong(RecordBatch.NO_TIMESTAMP));
        if (control) {
            ControlRecordType type = ControlRecordType.valueOf(batch.get("marker").asText());
            builder.appendEndTxnMarker(
                batch.get("timestamp").asLong(),
                new EndTransactionMarker(type, batch.get("coordinator_epoch").asInt()));
        } else {
            appendAll(builder, batch);
        }
        if (batch.has("last_offset")) {
            builder.overrideLastOffset(batch.get("last_offset").asLong());
        }
        MemoryRecords built = builder.build();
        return Utils.toArray(built.buffer());
    }

    private static void appendAll(MemoryRecordsBuilder builder, JsonNode batch) {
        long next = batch.path("base_offset").asLong(0);
        for (JsonNode record : batch.get("records")) {
            long offset = record.path("offset").asLong(next);
            builder.appendWithOffset(
                offset, record.get("timestamp").asLong(), bytes(record.get("key")),
                bytes(record.get("value")), headers(record));
            next = offset + 1;
        }
    }

    static TimestampType timestampType(JsonNode batch) {
        return TimestampType.forName(batch.path("timestamp_type").asText("CreateTime"));
    }

    private static Compression compression(JsonNode batch) {
        String name = batch.path("codec").asText("none");
        if (!batch.has("level")) {
            return Compression.of(name).build();
        }
        int level = batch.get("level").asInt();
        return switch (name) {
            case "gzip" -> new GzipCompression.Builder().level(level).build();
            case "lz4" -> new Lz4Compression.Builder().level(level).build();
            case "zstd" -> new ZstdCompression.Builder().level(level).build();
            default -> throw new IllegalArgumentException(name + " has no levels");
        };
    }

    /** Decodes base64 text to bytes; JSON's null is Kafka's null. */
    static byte[] bytes(JsonNode field) {
        try {
            return field == null || field.isNull() ? null : field.binaryValue();
        } catch (IOException failure) {
            throw new IllegalArgumentException(failure);
        }
    }

    static Header[] headers(JsonNode record) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.path("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        return headers.toArray(new Header[0]);
    }

    /**
     * Returns every batch in {@code data} or in the file {@code path}, with all fields.
     *
     * <p>If Kafka refuses a batch's records, the batch has {@code error} in place of the remaining
     * records. Bytes that are no batch end the list with an entry that has only {@code error}. For
     * some damaged lengths, Kafka runs out of memory, which also counts as a refusal.
     */
    static JsonNode read(JsonNode question) throws IOException {
        byte[] data = question.has("path")
            ? Files.readAllBytes(Path.of(question.get("path").asText()))
            : question.get("data").binaryValue();
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(data));
        ArrayNode batches = Oracle.JSON.createArrayNode();
        try {
            for (RecordBatch batch : records.batches()) {
                describe(batches.addObject(), batch);
            }
        } catch (RuntimeException | Error failure) {
            Oracle.describe(batches.addObject(), failure);
        }
        return batches;
    }

    private static void describe(ObjectNode answer, RecordBatch batch) {
        try {
            describeHeader(answer, batch);
            ArrayNode records = answer.putArray("records");
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                records.add(describe(batch, record));
            }
        } catch (RuntimeException | Error failure) {
            Oracle.describe(answer, failure);
        }
    }

    private static void describeHeader(ObjectNode answer, RecordBatch batch) {
        answer.put("magic", batch.magic());
        answer.put("size_bytes", batch.sizeInBytes());
        answer.put("is_valid", batch.isValid());
        answer.put("crc", batch.checksum());
        answer.put("codec", batch.compressionType().name);
        answer.put("timestamp_type", batch.timestampType().name);
        answer.put("base_offset", batch.baseOffset());
        answer.put("last_offset", batch.lastOffset());
        answer.put("next_offset", batch.nextOffset());
        answer.put("max_timestamp", batch.maxTimestamp());
        answer.put("leader_epoch", batch.partitionLeaderEpoch());
        answer.put("producer_id", batch.producerId());
        answer.put("producer_epoch", batch.producerEpoch());
        answer.put("base_sequence", batch.baseSequence());
        answer.put("last_sequence", batch.lastSequence());
        answer.put("record_count", batch.countOrNull());
        answer.put("is_transactional", batch.isTransactional());
        answer.put("is_control", batch.isControlBatch());
        answer.put("delete_horizon_ms",
            batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
    }

    private static ObjectNode describe(RecordBatch batch, Record record) {
        ObjectNode answer = Oracle.JSON.createObjectNode();
        answer.put("offset", record.offset());
        answer.put("timestamp", record.timestamp());
        answer.put("sequence", record.sequence());
        answer.put("key", record.hasKey() ? Utils.toArray(record.key()) : null);
        answer.put("value", record.hasValue() ? Utils.toArray(record.value()) : null);
        ArrayNode headers = answer.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
        if (batch.isControlBatch()) {
            describeControl(answer, record);
        }
        return answer;
    }

    private static void describeControl(ObjectNode answer, Record record) {
        ControlRecordType type = ControlRecordType.parse(record.key());
        answer.put("control_type", type.name());
        if (type == ControlRecordType.ABORT || type == ControlRecordType.COMMIT) {
            answer.put("coordinator_epoch",
                EndTransactionMarker.deserialize(record).coordinatorEpoch());
        }
    }
}
