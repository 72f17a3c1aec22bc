package tidelog.kafka;

import java.io.IOException;
import kafka.Kafka;

/** A Kafka node that ends with its parent, so that a killed test run leaves no process. */
public final class Node {
    private Node() {}

    private static void haltAtEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                // The parent sends nothing. Only the end of the input matters.
            }
        } catch (IOException closed) {
            // This means the same as the end of the input.
        }
        Runtime.getRuntime().halt(1);
    }

    /** Runs {@code kafka.Kafka} with the same arguments. */
    public static void main(String[] args) {
        Thread watch = new Thread(Node::haltAtEndOfInput, "parent-watch");
        watch.setDaemon(true);
        watch.start();
        Kafka.main(args);
    }
}
