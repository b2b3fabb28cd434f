'use strict';

/*
 * Drives the AWS Node.js SDK by the line protocol that driver.py describes.
 *
 *     node driver.js DIRECTORY      (the directory with node_modules)
 *
 * Each command runs in a promise of its own. Answers are in the order in which the calls end.
 */

const { createRequire } = require('module');
const path = require('path');
const readline = require('readline');

const load = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const sdk = load('aws-greengrass-core-sdk/stream-manager');
const internals = load('aws-greengrass-core-sdk/stream-manager/utilInternal');
const cbor = load('cbor');

const toStderr = (...args) => console.error(...args);

// The client's constructor connects without awaiting. A refused connection therefore causes an
// unhandled rejection and a call of the error callback.
process.on('unhandledRejection', (reason) => toStderr('unhandled rejection:', reason));

// MessageFrame requires an Operation, and the constructor of Operation requires a known number.
const anyOperation = (number) => (
    Object.create(sdk.Operation.prototype, { asMap: { value: () => number } })
);

class Session {
    static connect({ port, token }) {
        process.env.STREAM_MANAGER_SERVER_PORT = String(port);
        if (token === null || token === undefined) {
            delete process.env.AWS_CONTAINER_AUTHORIZATION_TOKEN;
        } else {
            process.env.AWS_CONTAINER_AUTHORIZATION_TOKEN = token;
        }
        const session = new Session();
        return new Promise((resolve, reject) => {
            session.client = new sdk.StreamManagerClient({
                onConnectCb: () => resolve(session),
                onErrorCb: (error) => {
                    // The SDK only logs the status.
                    if (error instanceof sdk.ConnectFailedException && session.connected) {
                        error.status = session.connected.status;
                    }
                    reject(error);
                },
                logger: {
                    error: toStderr,
                    warn: toStderr,
                    info: () => {},
                    debug: (...args) => session.observe(args),
                },
            });
        });
    }

    // Records received frames from the SDK's debug log, so that the SDK stays unmodified.
    observe(args) {
        for (const argument of args) {
            if (argument instanceof sdk.ConnectResponse) {
                this.connected = argument;
            } else if (argument instanceof sdk.MessageFrame) {
                this.frame = argument;
            }
        }
    }

    create_message_stream({ definition }) {
        return this.client.createMessageStream(sdk.MessageStreamDefinition.fromMap(definition));
    }

    update_message_stream({ definition }) {
        return this.client.updateMessageStream(sdk.MessageStreamDefinition.fromMap(definition));
    }

    delete_message_stream({ name }) {
        return this.client.deleteMessageStream(name);
    }

    append_message({ name, data }) {
        return this.client.appendMessage(name, data);
    }

    async append_repeatedly({ name, data, count }) {
        const numbers = [];
        const millis = [];
        for (let i = 0; i < count; i += 1) {
            const start = process.hrtime.bigint();
            numbers.push(await this.client.appendMessage(name, data));
            millis.push(Number(process.hrtime.bigint() - start) / 1e6);
        }
        return { numbers, millis };
    }

    async read_messages({ name, options }) {
        const messages = options === undefined
            ? await this.client.readMessages(name)
            : await this.client.readMessages(name, sdk.ReadMessagesOptions.fromMap(options));
        return messages.map((message) => message.asMap());
    }

    list_streams() {
        return this.client.listStreams();
    }

    async describe_message_stream({ name }) {
        return (await this.client.describeMessageStream(name)).asMap();
    }

    // Sends any operation number with any body, without the client's validation.
    async send({ operation, body }) {
        const map = { requestId: internals.uuidv4(), ...body };
        // The SDK does not validate an object whose class has no validations map.
        const request = { requestId: map.requestId, asMap: () => map };
        const response = await this.client._sendAndReceive(anyOperation(operation), request);
        internals.throwOnErrorResponse(response);
        return response.asMap();
    }

    connect_response() {
        return this.connected.asMap();
    }

    last_response() {
        return cbor.decodeFirstSync(this.frame.payload);
    }

    close() {
        this.client.close();
    }
}

const fromJson = (_, value) => (
    value !== null && typeof value === 'object' && Object.keys(value).join() === 'base64'
        ? Buffer.from(value.base64, 'base64')
        : value
);

// JSON.stringify calls Buffer.toJSON before a replacer sees the buffer.
Buffer.prototype.toJSON = function toJSON() {
    return { base64: this.toString('base64') };
};

const statusName = (status) => (
    status instanceof sdk.ResponseStatusCode
        ? sdk.ResponseStatusCode.optionsFlipped[status.asMap()]
        : status === undefined ? null : status
);

const sessions = new Map();

const run = async ({ client, call, args = {} }) => {
    if (call === 'connect') {
        sessions.set(client, await Session.connect(args));
        return null;
    }
    const result = await sessions.get(client)[call](args);
    return result === undefined ? null : result;
};

const answer = async (command) => {
    const reply = { id: command.id };
    try {
        reply.result = await run(command);
    } catch (error) {
        reply.error = error.constructor.name;
        reply.message = error.message;
        reply.status = statusName(error.status);
    }
    process.stdout.write(`${JSON.stringify(reply)}\n`);
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => answer(JSON.parse(line, fromJson)));
lines.on('close', () => process.exit(0));
