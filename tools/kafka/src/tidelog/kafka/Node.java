package tidelog.kafka;

import java.io.IOException;
import kafka.Kafka;

/** A Kafka node that ends with its parent: nothing is left running when a test run is killed. */
public final class Node {
    private Node() {}

    private static void haltAtEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is ever said; only the end counts.
            }
        } catch (IOException closed) {
            // As good as the end.
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
