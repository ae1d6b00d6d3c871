import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A service as many are: a pool of threads of a fixed size, and before it a queue
 * that has no end. The second argument is its address for /inside, which says
 * how many requests were in it at once since it was last asked.
 */
public class Pool {
    static final int THREADS = 16;
    static final int WORK_MILLIS = 20;

    static final AtomicInteger inside = new AtomicInteger();
    static final AtomicInteger most = new AtomicInteger();

    public static void main(String[] args) throws IOException {
        var pool = Executors.newFixedThreadPool(THREADS);
        var server = HttpServer.create(new InetSocketAddress(Integer.parseInt(args[0])), 1024);
        server.setExecutor(task -> {
            int now = inside.incrementAndGet();
            most.accumulateAndGet(now, Math::max);
            pool.execute(() -> {
                try {
                    task.run();
                } finally {
                    inside.decrementAndGet();
                }
            });
        });
        server.createContext("/", Pool::work);
        server.createContext("/health", exchange -> answer(exchange, "ok\n"));
        server.start();

        var control = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1])), 0);
        control.createContext("/inside", exchange -> answer(exchange, most.getAndSet(inside.get()) + "\n"));
        control.start();
    }

    static void work(HttpExchange exchange) throws IOException {
        try {
            Thread.sleep(WORK_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        answer(exchange, "ok\n");
    }

    static void answer(HttpExchange exchange, String text) throws IOException {
        try (exchange; var body = exchange.getRequestBody()) {
            body.readAllBytes();
            byte[] bytes = text.getBytes();
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
        }
    }
}
