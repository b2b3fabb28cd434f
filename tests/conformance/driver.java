/*
 * Drives the AWS Java SDK by the line protocol that driver.py describes.
 *
 *     java -cp SDK.jar driver.java
 *
 * Needs Java 17. The classpath holds the SDK, Jackson and Jackson's CBOR format; the SDK's large
 * jar contains all three. Each command runs in a thread of its own.
 */

import com.amazonaws.greengrass.streammanager.client.StreamManagerClient;
import com.amazonaws.greengrass.streammanager.client.StreamManagerClientFactory;
import com.amazonaws.greengrass.streammanager.client.config.StreamManagerClientConfig;
import com.amazonaws.greengrass.streammanager.client.config.StreamManagerServerInfo;
import com.amazonaws.greengrass.streammanager.client.exception.StreamManagerException;
import com.amazonaws.greengrass.streammanager.client.response.ResponseHandler;
import com.amazonaws.greengrass.streammanager.client.response.ResponseManager;
import com.amazonaws.greengrass.streammanager.model.MessageStreamDefinition;
import com.amazonaws.greengrass.streammanager.model.ReadMessagesOptions;
import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonSerializer;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializerProvider;
import com.fasterxml.jackson.databind.module.SimpleModule;
import com.fasterxml.jackson.dataformat.cbor.CBORFactory;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    // The SDK's objects as maps, without the fields that are not set.
    private static final ObjectMapper PLAIN =
            new ObjectMapper().setSerializationInclusion(JsonInclude.Include.NON_NULL);
    private static final ObjectMapper CBOR = new ObjectMapper(new CBORFactory());

    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws IOException {
        // Only answers go to stdout. The SDK writes log lines there.
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        JSON.registerModule(new SimpleModule().addSerializer(byte[].class, new BytesSerializer()));
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            Map<String, Object> command = asMap(fromJson(JSON.readValue(line, Map.class)));
            Thread thread = new Thread(() -> answer(command, answers));
            thread.setDaemon(true);
            thread.start();
        }
        System.exit(0);
    }

    private static void answer(Map<String, Object> command, PrintStream answers) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.get("id"));
        try {
            answer.put("result", run(command));
        } catch (Throwable thrown) {
            Throwable error =
                    thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            answer.put("error", error.getClass().getSimpleName());
            answer.put("message", String.valueOf(error.getMessage()));
            answer.put("status", error instanceof StreamManagerException
                    ? ((StreamManagerException) error).getStatus() : null);
            if (!(error instanceof StreamManagerException)) {
                error.printStackTrace();
            }
        }
        String line;
        try {
            line = JSON.writeValueAsString(answer);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        synchronized (answers) {
            answers.println(line);
            answers.flush();
        }
    }

    private static Object run(Map<String, Object> command) throws Exception {
        String name = (String) command.get("client");
        Map<String, Object> args = asMap(command.get("args"));
        String call = (String) command.get("call");
        if (call.equals("connect")) {
            SESSIONS.put(name, new Session((int) args.get("port"), (String) args.get("token")));
            return null;
        }
        Session session = SESSIONS.get(name);
        return switch (call) {
            case "create_message_stream" -> {
                session.client.createMessageStream(definition(args));
                yield null;
            }
            case "update_message_stream" -> {
                session.client.updateMessageStream(definition(args));
                yield null;
            }
            case "delete_message_stream" -> {
                session.client.deleteMessageStream((String) args.get("name"));
                yield null;
            }
            case "append_message" -> session.client.appendMessage(
                    (String) args.get("name"), (byte[]) args.get("data"));
            case "append_repeatedly" -> session.appendRepeatedly(
                    (String) args.get("name"), (byte[]) args.get("data"), (int) args.get("count"));
            case "read_messages" -> session.readMessages(
                    (String) args.get("name"), asMap(args.get("options")));
            case "list_streams" -> session.client.listStreams();
            case "describe_message_stream" -> PLAIN.convertValue(
                    session.client.describeMessageStream((String) args.get("name")), Map.class);
            case "send" -> session.send((int) args.get("operation"), asMap(args.get("body")));
            case "connect_response" -> CBOR.readValue(session.relay.connectResponse, Map.class);
            case "last_response" -> CBOR.readValue(session.relay.lastResponse, Map.class);
            case "close" -> {
                session.close();
                yield null;
            }
            default -> throw new IllegalArgumentException("unknown call " + call);
        };
    }

    private static MessageStreamDefinition definition(Map<String, Object> args) {
        return PLAIN.convertValue(args.get("definition"), MessageStreamDefinition.class);
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> asMap(Object value) {
        return (Map<String, Object>) value;
    }

    /** Replaces {"base64": "..."} by bytes, at any depth. */
    private static Object fromJson(Object value) {
        if (value instanceof Map) {
            Map<String, Object> map = asMap(value);
            if (map.size() == 1 && map.containsKey("base64")) {
                return Base64.getDecoder().decode((String) map.get("base64"));
            }
            map.replaceAll((key, item) -> fromJson(item));
        } else if (value instanceof List) {
            List<Object> items = new ArrayList<>();
            for (Object item : (List<?>) value) {
                items.add(fromJson(item));
            }
            return items;
        }
        return value;
    }

    private static class BytesSerializer extends JsonSerializer<byte[]> {
        @Override
        public void serialize(byte[] bytes, JsonGenerator json, SerializerProvider provider)
                throws IOException {
            json.writeStartObject();
            json.writeStringField("base64", Base64.getEncoder().encodeToString(bytes));
            json.writeEndObject();
        }
    }

    private static Object field(Object object, String name) throws ReflectiveOperationException {
        Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }

    /** One SDK client and the relay that it is connected through. */
    private static class Session {
        final Relay relay;
        final StreamManagerClient client;

        Session(int port, String token) throws Exception {
            relay = new Relay(port);
            StreamManagerClientConfig config = StreamManagerClientConfig.builder()
                    .serverInfo(StreamManagerServerInfo.builder()
                            .host("127.0.0.1").port(relay.port()).build())
                    .build();
            // The SDK reads the token from the environment, which a Java program cannot change.
            Field authToken = config.getAuthInfo().getClass().getDeclaredField("authToken");
            authToken.setAccessible(true);
            authToken.set(config.getAuthInfo(), token);
            try {
                client = StreamManagerClientFactory.standard().withClientConfig(config).build();
            } catch (StreamManagerException error) {
                relay.close();
                throw error;
            }
        }

        Map<String, Object> appendRepeatedly(String name, byte[] data, int count)
                throws StreamManagerException {
            List<Long> numbers = new ArrayList<>();
            List<Double> millis = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                long start = System.nanoTime();
                numbers.add(client.appendMessage(name, data));
                millis.add((System.nanoTime() - start) / 1e6);
            }
            return Map.of("numbers", numbers, "millis", millis);
        }

        Object readMessages(String name, Map<String, Object> options)
                throws StreamManagerException {
            return PLAIN.convertValue(
                    client.readMessages(
                            name, PLAIN.convertValue(options, ReadMessagesOptions.class)),
                    List.class);
        }

        /** Sends any operation number with any body, without the client's validation. */
        Object send(int operation, Map<String, Object> body) throws Exception {
            Map<String, Object> request = new LinkedHashMap<>(body);
            String id = UUID.randomUUID().toString();
            request.putIfAbsent("requestId", id);
            byte[] payload = CBOR.writeValueAsBytes(request);
            ByteBuffer frame = ByteBuffer.allocate(5 + payload.length)
                    .putInt(1 + payload.length).put((byte) operation).put(payload);
            ResponseManager responses = (ResponseManager) field(client, "responseManager");
            Object writer = field(client, "writer");
            OutputStream out = (OutputStream) field(writer, "out");
            responses.registerForResponse(id);
            // The lock of the client's own requests.
            synchronized (writer) {
                out.write(frame.array());
                out.flush();
            }
            Object response = responses.waitForResponse(id, 60, Object.class);
            Method check =
                    ResponseHandler.class.getMethod("throwIfErrorResponse", response.getClass());
            check.invoke(null, response);
            return PLAIN.convertValue(response, Map.class);
        }

        void close() throws Exception {
            client.close();
            relay.close();
        }
    }

    /**
     * Passes bytes between the client and the broker, and keeps the bodies of responses.
     *
     * The SDK does not show responses, so that the driver reads them on their way.
     */
    private static class Relay {
        private final ServerSocket listener;
        private final int brokerPort;
        volatile byte[] connectResponse;
        volatile byte[] lastResponse;

        Relay(int brokerPort) throws IOException {
            this.brokerPort = brokerPort;
            listener = new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
            start(this::accept);
        }

        int port() {
            return listener.getLocalPort();
        }

        void close() throws IOException {
            listener.close();
        }

        private interface Work {
            void run() throws IOException;
        }

        private static void start(Work work, Socket... sockets) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (IOException error) {
                    // The connection ended.
                } finally {
                    for (Socket socket : sockets) {
                        try {
                            socket.close();
                        } catch (IOException error) {
                            // It was closed before.
                        }
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        private void accept() throws IOException {
            while (true) {
                Socket client = listener.accept();
                Socket broker;
                try {
                    broker = new Socket(InetAddress.getLoopbackAddress(), brokerPort);
                } catch (IOException error) {
                    client.close();
                    continue;
                }
                client.setTcpNoDelay(true);
                broker.setTcpNoDelay(true);
                start(() -> client.getInputStream().transferTo(broker.getOutputStream()),
                        client, broker);
                start(() -> passResponses(broker, client), client, broker);
            }
        }

        private void passResponses(Socket broker, Socket client) throws IOException {
            DataInputStream in = new DataInputStream(broker.getInputStream());
            DataOutputStream out = new DataOutputStream(client.getOutputStream());
            out.writeByte(in.readByte());
            boolean isFirst = true;
            while (true) {
                byte[] frame = new byte[in.readInt()];
                in.readFully(frame);
                byte[] body = new byte[frame.length - 1];
                System.arraycopy(frame, 1, body, 0, body.length);
                if (isFirst) {
                    connectResponse = body;
                    isFirst = false;
                }
                lastResponse = body;
                ByteBuffer bytes = ByteBuffer.allocate(4 + frame.length);
                bytes.putInt(frame.length).put(frame);
                out.write(bytes.array());
            }
        }
    }
}
