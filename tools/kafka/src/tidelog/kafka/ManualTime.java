package tidelog.kafka;

import java.util.PriorityQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;

/**
 * Kafka's clock and background threads, which a script controls.
 *
 * <p>A task that is due at once runs on the caller's thread when it is scheduled. A later task runs
 * when {@link #set} passes its time. A repeated task runs once per call of {@link #set} that passes
 * its time. So a script has the same result on every machine.
 */
final class ManualTime implements Time, Scheduler {
    private record Task(long dueMs, long order, long periodMs, Runnable work)
        implements Comparable<Task> {
        @Override
        public int compareTo(Task other) {
            int byTime = Long.compare(dueMs, other.dueMs);
            return byTime != 0 ? byTime : Long.compare(order, other.order);
        }
    }

    private final PriorityQueue<Task> tasks = new PriorityQueue<>();
    private long nowMs;
    private long scheduled = 0;

    ManualTime(long nowMs) {
        this.nowMs = nowMs;
    }

    /** Sets the clock back or ahead, and runs the tasks that are due. */
    void set(long newNowMs) {
        nowMs = newNowMs;
        while (!tasks.isEmpty() && tasks.peek().dueMs <= nowMs) {
            Task task = tasks.poll();
            task.work.run();
            if (task.periodMs > 0) {
                tasks.add(new Task(nowMs + task.periodMs, scheduled++, task.periodMs, task.work));
            }
        }
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return TimeUnit.MILLISECONDS.toNanos(nowMs);
    }

    @Override
    public void sleep(long ms) {
        set(nowMs + ms);
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("a script never waits");
    }

    @Override
    public <T> T waitForFuture(Future<T> future, long deadlineNs)
            throws InterruptedException, ExecutionException, TimeoutException {
        return future.get(0, TimeUnit.MILLISECONDS);
    }

    @Override
    public void startup() {}

    @Override
    public void shutdown() {
        tasks.clear();
    }

    @Override
    public void resizeThreadPool(int size) {}

    @Override
    public ScheduledFuture<?> schedule(String name, Runnable work, long delayMs, long periodMs) {
        if (delayMs <= 0 && periodMs <= 0) {
            work.run();
        } else {
            tasks.add(new Task(nowMs + Math.max(delayMs, 1), scheduled++, periodMs, work));
        }
        return new Done();
    }

    /** No caller waits for these futures. Kafka cancels some of them when it closes. */
    private static final class Done extends CompletableFuture<Void>
        implements ScheduledFuture<Void> {
        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(java.util.concurrent.Delayed other) {
            return 0;
        }
    }
}
